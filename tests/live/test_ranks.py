"""Two ranks in one server, tensor or pipeline parallel: the same decisions, and the same end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from feather_sglang.bench.tiny_llama import write_model
from feather_sglang.cli import server
from tests.harness.prompts import Tokens, interleaved
from tests.harness.rank_faults import cores, install
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

REQUESTS, FAMILIES = 256, 8
ON_CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"]
SMALL = ["--skip-tokenizer-init", "--load-format", "dummy", "--max-total-tokens", "20000"]
CHECKED = {"SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1"}


@contextmanager
def two_ranks(folder: Path, layout: str, gate: str, **env: str) -> Iterator[server.Server]:
    """:param gate: ``static`` is one that decides by measured nanoseconds (``tests/harness/rank_faults.py``)."""
    model = write_model(folder / "model", num_hidden_layers=2, num_key_value_heads=2, tie_word_embeddings=False)
    args = ["--model-path", str(model), *ON_CPU, *SMALL, layout, "2", "--max-running-requests", "24"]
    args += ["--schedule-policy", "feather", "--feather-gate", gate]
    args += ["--enable-metrics", "--feather-log", str(folder / "decisions")]  # on the leader alone
    env |= install(folder / "plugin") | {"SGLANG_PLATFORM": "feather_cpu", "SGLANG_CPU_OMP_THREADS_BIND": cores(2)}
    with server.running(args, log=folder / "log", env=env) as running:
        yield running


def generate(running: server.Server, prompts: Sequence[Sequence[int]]) -> list[Any]:
    body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}}
    request = urllib.request.Request(
        f"{running.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        answers: list[Any] = json.load(answer)
        return answers


def log_of(running: server.Server) -> str:
    assert running.log is not None
    return running.log.read_text(errors="replace")


def admissions(running: server.Server) -> list[list[tuple[str, str]]]:
    """For each rank: the number of its admissions after each pass, and their digest."""
    return [re.findall(rf"rank {rank} admitted (\d+) digest (\d+)", log_of(running)) for rank in (0, 1)]


def burst(running: server.Server, tokens: Tokens) -> None:
    prompts = interleaved(tokens.families(FAMILIES, REQUESTS // FAMILIES, 96, 24))
    assert len(generate(running, prompts)) == REQUESTS


@pytest.mark.parametrize(("layout", "learns"), [("--tp-size", "ucb"), ("--pp-size", "model")])
def test_ranks_admit_the_same_requests_in_every_pass(tmp_path: Path, layout: str, learns: str) -> None:
    """With SGLang's own rank consensus checker on, which ends a server whose ranks differ.

    One burst under a gate that decides by measured nanoseconds, then 1,024 admissions under one that learns.
    """
    tokens = Tokens()
    with two_ranks(tmp_path, layout, "static", **CHECKED) as running:
        burst(running, tokens)
        said = subprocess.run(
            [sys.executable, "-m", "feather_sglang.cli.main", "set", "--url", running.url, f"gate={learns}"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert said.stdout == f"gate static -> {learns}\n", said.stderr
        for _ in range(4):
            burst(running, tokens)
        first, second = admissions(running)
        with urllib.request.urlopen(f"{running.url}/server_info", timeout=PATIENCE) as answer:
            state = json.load(answer)["internal_states"][0]["feather"]
    assert first == second
    assert int(first[-1][0]) == state["admitted"] == 5 * REQUESTS
    assert int(first[-1][1]) == state["decisions_digest"]
    assert (state["policy"], state["gate"], state["ranks"], state["failures"]) == ("feather", learns, 2, 0)
    assert state["ticks"] > 5, "one goes out for some 16 steps at the latest"
    learned = state["gate_state"]
    assert learned["steps"] > 20 if learns == "model" else learned["adds"] > 20
    assert state["max_wait_tokens"] != 600_000, "the bound follows the leader's clock"


def test_a_failure_of_all_ranks_is_survived_and_one_of_a_single_rank_ends_the_server(tmp_path: Path) -> None:
    """The failure of all is a core that names nobody: they see it in the same pass, which they compare, too."""
    tokens = Tokens()
    after = {"FEATHER_TEST_STALL": "100", "FEATHER_TEST_FAIL": "300"}
    with two_ranks(tmp_path, "--tp-size", "static", **after) as running:
        burst(running, tokens)
        first, second = admissions(running)
        assert first == second
        assert log_of(running).count("failed (StalledError: an idle engine was given nobody") == 2
        assert log_of(running).count("it is built anew") == 2
        with pytest.raises(OSError):  # noqa: PT011  the connection breaks, in one of several ways
            burst(running, tokens)
        until(
            lambda: "failed on 1 of 2 ranks (failure 2, in pass" in log_of(running), lambda: log_of(running), every=0.5
        )
