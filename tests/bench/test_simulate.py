"""``feather simulate``: the keys that programs read, the figures, the negative control, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from feather_sglang.bench import picture
from feather_sglang.bench.simulate_report import cacheable_tokens
from feather_sglang.cli import main
from feather_sglang.simulate.engine import Served
from feather_sglang.simulate.policies import make_engine
from feather_sglang.simulate.profiles import PROFILES
from feather_sglang.simulate.run import run, saturating_speed
from feather_sglang.simulate.traces import TraceError, read
from feather_sglang.simulate.workload import Job, Trace

SAMPLE = Path(__file__).parents[2] / "bench" / "data" / "mooncake" / "conversation_head.jsonl"
ARM = {
    *("throughput_tok_s", "tok_per_cpu_s", "ttft_s", "tpot_s"),
    *("steps", "prefill_tokens", "cached_tokens", "cacheable_tokens"),
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("simulate")
    argv = ["simulate", str(SAMPLE), "--limit", "150", "--policies", "fcfs,lpm-lifted,feather"]
    files = ["--json", str(folder / "s.json"), "--svg", str(folder / "s.svg"), "--png", str(folder / "s.png")]
    assert main.main([*argv, *files]) == 0
    assert (folder / "s.png").read_bytes().startswith(b"\x89PNG")
    found: dict[str, Any] = json.loads((folder / "s.json").read_text())
    return found


def test_the_keys_of_the_contract(report: dict[str, Any]) -> None:
    assert report.keys() >= {"schema", "command", "machine", "versions", "rows", "profile", "decisions_per_second"}
    assert report["schema"] == {"name": "feather simulate", "version": 1}
    names = {"fcfs", "lpm-lifted", "feather"}
    for key in ("policies", "ratio_to_fcfs", "p99_ttft_ratio_to_fcfs"):
        assert report[key].keys() == names
    assert all(arm.keys() == ARM for arm in report["policies"].values())
    assert report["ratio_to_fcfs"]["fcfs"] == report["p99_ttft_ratio_to_fcfs"]["fcfs"] == 1
    assert report["profile"]["name"] == "h200"
    assert report["decisions_per_second"] > 0


def test_the_figures_hang_together(report: dict[str, Any]) -> None:
    trace = read(SAMPLE, 150)
    for row in report["rows"]:
        assert row["requests"] == 150
        assert row["prompt_tokens"] == sum(job.length for job in trace.jobs)
        assert row["output_tokens"] == sum(job.output for job in trace.jobs)
        assert row["prefill_tokens"] + row["cached_tokens"] == row["prompt_tokens"]
        assert 0 < row["cached_tokens"] <= row["cacheable_tokens"]
        assert row["ttft_s"]["p50"] <= row["ttft_s"]["p99"]
        assert row["throughput_tok_s"] == pytest.approx(row["output_tokens"] / row["seconds"])


def test_cacheable() -> None:
    def served(first: float, levels: list[int], length: int) -> Served:
        return Served(Job(0, 0.0, levels, length, 1), 0.0, first, first, 0, length)  # type: ignore[arg-type]

    order = [served(2.0, [1, 2, 3], 200), served(1.0, [1, 2], 128), served(3.0, [1, 2], 128)]
    assert cacheable_tokens(order, 64) == 128 + 127, "in the order of first tokens; the last token is computed"


def test_saturation() -> None:
    """At the speed that is found the queue is never empty, and at half of it, it is."""
    trace, profile = read(SAMPLE, 400), PROFILES["h200-sharing"]
    speed = saturating_speed(trace, profile)
    assert speed > 1
    emptied = {}
    for at in (speed, speed // 2):
        jobs = trace.at_speed(at)
        engine = make_engine("fcfs", Trace(jobs), profile.cost, profile.machine(trace.level_tokens))
        first, last = jobs[20].arrival, jobs[-1].arrival
        emptied[at] = any(first <= engine.now < last and not engine.waiting for _ in engine.run())
    assert emptied == {speed: False, speed // 2: True}


def test_a_trace_that_cannot_saturate() -> None:
    with pytest.raises(TraceError, match="the queue empties before the last arrival at every speed"):
        saturating_speed(read(SAMPLE, 1), PROFILES["h200"])


def test_negative_control() -> None:
    """Mooncake's conversations share next to nothing: Feather may lose next to nothing against fcfs."""
    trace, profile = read(SAMPLE), PROFILES["h200"]
    jobs = trace.at_speed(saturating_speed(trace, profile))
    fcfs, feather = (run(policy, jobs, profile, trace.level_tokens) for policy in ("fcfs", "feather"))
    assert fcfs.seconds / feather.seconds >= 0.99

    def p99(served: list[Served]) -> float:
        return sorted(one.first_token - one.arrived for one in served)[int(0.99 * len(served))]

    assert p99(feather.served) <= 1.05 * p99(fcfs.served)


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["/none/such"], "/none/such cannot be read (No such file or directory)"),
        ([str(SAMPLE), "--profile", "tpu"], "--profile: there is no profile 'tpu'; expected one of h200, a100"),
        ([str(SAMPLE), "--profile", "cpu"], "line 7: the request needs 23,594 tokens"),
        ([str(SAMPLE), "--policies", "fcfs,lifo"], "--policies: there is no policy 'lifo'; expected some of fcfs,"),
        ([str(SAMPLE), "--policies", "fcfs,fcfs"], "--policies: name each policy once"),
        ([str(SAMPLE), "--speed", "fast"], "--speed: 'fast' is no speed; expected a number above 0, or saturate"),
        ([str(SAMPLE), "--limit", "0"], "--limit: '0'; expected a whole number of at least 1"),
        ([str(SAMPLE), "--json", "/none/such/s.json"], "there is no folder /none/such"),
    ],
)
def test_bad_input(argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["simulate", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert complaint in err
    assert err.startswith("feather: error: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "t.jsonl is empty; expected one request a line"),
        ('{"prompt": "a", "max_tok', "t.jsonl, line 1: this is not"),
    ],
)
def test_a_damaged_trace(content: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    assert main.main(["simulate", str(tmp_path / "t.jsonl")]) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1


def test_no_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    assert main.main(["simulate", str(SAMPLE), "--png", "s.png"]) == 2
    assert "needs matplotlib" in capsys.readouterr().err
