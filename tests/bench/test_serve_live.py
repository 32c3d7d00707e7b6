"""``feather bench serve --base-url``: the client, and what it says, on one running server of a tiny model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from feather_sglang.bench.counters import SERVER_ARGS
from feather_sglang.bench.tiny_llama import write_model
from feather_sglang.cli import main, server
from tests.harness.tokenizer import write_tokenizer

pytestmark = pytest.mark.slow

GENERATED = ["--workload", "generated-shared-prefix", "--families", "4", "--per-family", "4"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Server]:
    folder = tmp_path_factory.mktemp("served")
    model = write_model(folder / "tiny")
    write_tokenizer(model)
    args = ["--model-path", str(model), "--load-format", "dummy", "--device", "cpu", "--disable-cuda-graph"]
    args += ["--attention-backend", "feather-cascade", "--dtype", "float32", "--max-total-tokens", "20000"]
    args += [
        "--schedule-policy",
        "feather",
        "--feather-order",
        "held",
        "--log-requests",
        "--log-requests-level",
        "2",
    ]
    environment = {"SGLANG_PLATFORM": "feather_cpu", "FEATHER_PHASES": "1"}
    with server.running([*args, *SERVER_ARGS], log=folder / "log", env=environment) as running:
        yield running


@pytest.fixture
def bench(served: server.Server, tmp_path: Path) -> Any:
    """Runs the bench on the server; its status and its JSON (None: it wrote none)."""

    def bench(*options: str) -> tuple[int, Any]:
        path = tmp_path / "bench.json"
        status = main.main(["bench", "serve", "--base-url", served.url, "--json", str(path), *options])
        return status, json.loads(path.read_text()) if path.exists() else None

    return bench


def test_families_are_found_in_the_cache_and_labelled(
    bench: Any, served: server.Server, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--prefix", "300,400", "--suffix", "16", "--output-tokens", "16"]
    status, report = bench(*GENERATED, *sizes, "--flush", "--api-key", "a-secret")  # which it does not want
    said = capsys.readouterr()
    assert status == 0, said.err
    assert list(report["arms"]) == ["feather-held"]  # what it is
    arm = report["arms"]["feather-held"]
    assert arm["cacheable_tokens"] in range(4 * 3 * 700, 4 * 3 * 700 + 200)
    assert arm["cached_tokens"] >= 0.9 * arm["cacheable_tokens"]
    assert arm["prefill_tokens"] + arm["cached_tokens"] == 16 * (300 + 16) + 16 * (400 + 16)
    assert 1 < arm["mean_batch"] <= 16
    assert 0 < arm["distinct_over_total_kv"] < 0.6  # four families of four: a quarter, and their own tokens
    assert 0 < arm["policy_share"] < 1
    assert arm["tok_per_cpu_s"] is None
    assert report["complete"]
    assert "a-secret" not in json.dumps(report) + said.out + said.err
    assert "feather, order held, gate never" in said.out
    assert "4 families x 4, 400 shared + 16 own tokens" in said.out
    assert "100%" in said.err
    labels = re.findall(r"routing_key=(?:'|\")?(\d)", Path(served.log or "").read_text(errors="replace"))
    assert set(labels) == {"0", "1", "2", "3"}


def test_a_closed_loop_and_arrivals(bench: Any) -> None:
    sizes = [*GENERATED, "--prefix", "64", "--suffix", "16", "--output-tokens", "6"]
    _, report = bench(*sizes, "--concurrency", "2", "--flush")
    assert report["arms"]["feather-held"]["mean_batch"] <= 2
    _, report = bench(*sizes, "--rate", "16")
    assert report["rows"][0]["seconds"] > 0.4  # sixteen arrivals take a second on average
    assert report["arms"]["feather-held"]["cached_tokens"] > 15 * 64  # not flushed: what was sent before is there


def test_a_recording(bench: Any) -> None:
    path = Path(__file__).parents[2] / "bench" / "data" / "tau-bench" / "airline.json"
    context = ["--context", "8000", "--drop-longer"]  # of bytes: the policy alone has some 6,000
    status, report = bench("--data", str(path), "--requests", "6", "--output-tokens", "2", *context)
    assert status == 0
    assert report["rows"][0]["requests"] in range(1, 7)


def test_a_request_that_the_server_refuses_is_one_line(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = bench(*GENERATED, "--prefix", "30000")
    said = capsys.readouterr().err
    assert (status, report) == (1, None)
    assert "feather: error: feather-held: a request of 30,064 tokens ended after" in said
    assert "Traceback" not in said
