"""A full disk costs a server its log, and a scheduler that is killed ends it, with all that it started."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from feather_sglang.bench.tiny_llama import write_model
from feather_sglang.cli import server
from tests.harness.prompts import Tokens
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

SMALL = ["--load-format", "dummy", "--skip-tokenizer-init", "--max-total-tokens", "20000", "--disable-cuda-graph"]
ON_CPU = ["--device", "cpu", "--attention-backend", "torch_native"]


def generate(url: str, prompt: list[int], new: int) -> Any:
    body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": new, "ignore_eos": True}}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


def state_of(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/server_info", timeout=PATIENCE) as answer:
        state: dict[str, Any] = json.load(answer)["internal_states"][0]["feather"]
        return state


def test_a_full_disk_and_a_scheduler_that_is_killed(tmp_path: Path) -> None:
    args = ["--model-path", str(write_model(tmp_path / "model")), *SMALL, *ON_CPU, "--schedule-policy", "feather"]
    args += ["--feather-log", "/dev/full", "--feather-record", "/dev/full", "--feather-gate", "ucb"]
    args += ["--feather-state", str(tmp_path / "state"), "--feather-state-every", "0.2"]
    with server.running(args, log=tmp_path / "log", env={"SGLANG_PLATFORM": "feather_cpu"}) as running:
        tokens, sent = Tokens(), 0

        def both_are_lost() -> bool:
            """The log fails at its first line, the recording when it is flushed: after a second of traffic."""
            nonlocal sent
            generate(running.url, tokens.take(300), 48)
            sent += 1
            return len(state_of(running.url)["fallbacks"]) == 2 and (tmp_path / "state").exists()

        until(both_are_lost, lambda: state_of(running.url), every=0)
        state = state_of(running.url)
        assert state["fallbacks"] == {"log_off": 1, "recording_off": 1}
        assert (state["policy"], state["failures"], state["admitted"]) == ("feather", 0, sent)

        everybody = [psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]
        scheduler = next(p for p in everybody if any("scheduler" in part for part in p.cmdline()[:1]))
        scheduler.kill()
        with pytest.raises(OSError):  # noqa: PT011  the connection breaks, in one of several ways
            generate(running.url, tokens.take(300), 48)
        _, alive = psutil.wait_procs(everybody, timeout=PATIENCE)
        assert alive == []
    saved = json.loads((tmp_path / "state").read_text())
    assert saved["gates"]["ucb"], "what was learned before is whole"


def test_a_damaged_state_file_is_one_line_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / "state").write_text('{"format": "feather-st')
    args = ["--model-path", str(write_model(tmp_path / "model")), *SMALL, *ON_CPU, "--schedule-policy", "feather"]
    args += ["--feather-gate", "ucb", "--feather-state", str(tmp_path / "state")]
    running = server.start(args, log=tmp_path / "log", env=server.quick_environment())
    with pytest.raises(server.ServerFailed) as failure:
        running.wait_ready(PATIENCE)
    running.kill()
    assert failure.value.status == 2
    lines = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("feather: ")]
    assert len(lines) == 1, (tmp_path / "log").read_text()
    assert "--feather-state: the state file" in lines[0]
