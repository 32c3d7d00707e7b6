"""Statistics, the JSON that programs read, the table, the picture, and the server's counters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feather_sglang.bench import results, table
from feather_sglang.bench.client import Reply
from feather_sglang.bench.counters import Counters, parse
from feather_sglang.bench.kv import RunningKV
from feather_sglang.bench.machine import in_words, machine, versions
from feather_sglang.bench.picture import draw
from feather_sglang.bench.report import report as report_of

ARM_KEYS = {
    "throughput_tok_s",
    "tok_per_cpu_s",
    "ttft_s",
    "tpot_s",
    "steps",
    "prefill_tokens",
    "cached_tokens",
    "cacheable_tokens",
    "mean_batch",
    "distinct_over_total_kv",
    "policy_share",
}

CIRCUMSTANCES = results.Circumstances("feather bench serve", machine(), versions(), "ten requests")


def run(arm: str, *, cached: int, cpu_seconds: float | None, **given: Any) -> results.Run:
    replies = [
        Reply(ttft=n, latency=n + 3.0, output_tokens=4, prompt_tokens=50, cached_tokens=cached) for n in range(10)
    ]
    run = {
        "arm": arm,
        "workload": "ten requests",
        "round": 0,
        "replies": replies,
        "seconds": 8.0,
        "cpu_seconds": cpu_seconds,
        "counters": Counters(prefill_steps=3, decode_steps=4, prefill_tokens=500 - 10 * cached, decode_tokens=30),
        "cacheable_tokens": 400,
        "kv": RunningKV(total=200.0, distinct=50.0),
        "policy_seconds": 0.02,
        "decisions": None,
    }
    return results.Run(**(run | given))


def reported(runs: list[results.Run], **given: Any) -> dict[str, Any]:
    return report_of(runs, CIRCUMSTANCES, **({"workloads": ["ten requests"]} | given))


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    decisions = {"admitted": 10, "stops": 1, "barrier_waits": 7}
    runs = [run("feather", cached=40, cpu_seconds=4.0, decisions=decisions), run("fcfs", cached=20, cpu_seconds=8.0)]
    return reported(runs)


def test_the_keys_of_the_contract(report: dict[str, Any]) -> None:
    assert json.loads(json.dumps(report)) == report
    assert report.keys() >= {"schema", "command", "machine", "versions", "rows", "arms", "ratio_to_fcfs"}
    assert report["schema"] == {"name": "feather bench serve", "version": 1}
    for arm in report["arms"].values():
        assert arm.keys() == ARM_KEYS
        assert arm["ttft_s"].keys() == {"mean", "p50", "p99"}
        assert arm["tpot_s"].keys() == {"mean", "p99"}


def test_the_figures(report: dict[str, Any]) -> None:
    arm = report["arms"]["feather"]
    assert arm["throughput_tok_s"] == 40 / 8
    assert arm["tok_per_cpu_s"] == 40 / 4
    assert arm["ttft_s"] == pytest.approx({"mean": 4.5, "p50": 4.5, "p99": np.percentile(range(10), 99)})
    assert arm["tpot_s"] == {"mean": 1.0, "p99": 1.0}
    assert arm["steps"] == 7
    assert (arm["prefill_tokens"], arm["cached_tokens"], arm["cacheable_tokens"]) == (100, 400, 400)
    assert (arm["mean_batch"], arm["distinct_over_total_kv"], arm["policy_share"]) == (7.5, 0.25, 0.0025)
    assert report["ratio_to_fcfs"] == {"fcfs": 1.0, "feather": 2.0}
    assert report["complete"]


def test_without_the_baseline_there_is_no_ratio() -> None:
    runs = [run("lpm", cached=1, cpu_seconds=1.0), run("fcfs@flashinfer", cached=1, cpu_seconds=1.0)]
    assert reported(runs)["ratio_to_fcfs"] == {"fcfs@flashinfer": 1.0}


def test_rounds_are_compared_in_pairs_and_the_median_is_shown_with_its_spread() -> None:
    seconds = {"fcfs": (10.0, 20.0, 30.0), "feather": (5.0, 40.0, 10.0)}
    rounds = [
        run(arm, cached=1, cpu_seconds=each, round=number)
        for arm, times in seconds.items()
        for number, each in enumerate(times)
    ]
    report = reported(rounds)
    assert report["ratio_to_fcfs"]["feather"] == 2.0  # of 2, 1/2 and 3: not the ratio of the medians
    assert report["ratio_spread"]["feather"] == [0.5, 3.0]
    assert report["arms"]["fcfs"]["tok_per_cpu_s"] == 2.0
    assert report["spread"]["fcfs"]["tok_per_cpu_s"] == [pytest.approx(40 / 30), 4.0]
    assert len(report["rows"]) == 6
    assert "2.00 (0.50-3.00)" in table.render(report)
    unpaired = reported(
        [each for each in rounds if (each.arm, each.round) != ("fcfs", 1)]
    )  # interrupted on the way back
    assert unpaired["ratio_spread"]["feather"] == [2.0, 3.0]


def test_several_workloads_are_shown_each_and_together() -> None:
    runs = [
        run(arm, cached=cached, cpu_seconds=cpu, workload=workload)
        for arm, cpu in (("fcfs", 8.0), ("feather", 4.0))
        for workload, cached in (("one", 10), ("two", 30))
    ]
    report = reported(runs, workloads=["one", "two"])
    assert [cell["arms"]["fcfs"]["cached_tokens"] for cell in report["workloads"]] == [100, 300]
    together = report["arms"]["feather"]
    assert (together["cached_tokens"], together["cacheable_tokens"], together["steps"]) == (400, 800, 14)
    assert together["throughput_tok_s"] == 80 / 16
    assert together["tok_per_cpu_s"] == 80 / 8
    assert together["ttft_s"]["p99"] == pytest.approx(np.percentile([*range(10), *range(10)], 99))
    half = reported(runs[:3], workloads=["one", "two"], complete=False, stopped="interrupted")
    assert list(half["arms"]) == ["fcfs"]  # feather has not seen both
    assert list(half["workloads"][0]["arms"]) == ["fcfs", "feather"]
    assert (half["complete"], half["stopped"]) == (False, "interrupted")


def test_a_server_that_tells_nothing() -> None:
    unknown = run("feather", cached=1, cpu_seconds=None, counters=None, policy_seconds=None)
    report = reported([unknown])
    assert report["arms"]["feather"]["steps"] is None
    assert report["ratio_to_fcfs"] == {}
    assert json.loads(json.dumps(report)) == report
    lines = table.render(report).splitlines()
    assert next(line for line in lines if line.startswith("forward steps")).split()[-1] == "-"


def test_one_output_token_has_no_time_between_tokens() -> None:
    assert Reply(ttft=1.0, latency=1.0, output_tokens=1, prompt_tokens=5, cached_tokens=0).tpot == 0.0


def test_the_file_is_replaced_as_a_whole(report: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    results.write({}, path)
    results.write(report, path)
    assert json.loads(path.read_text()) == report
    assert list(tmp_path.iterdir()) == [path]


def test_the_table(report: dict[str, Any]) -> None:
    lines = table.render(report).splitlines()
    assert lines[0].split() == ["fcfs", "feather"]  # the baseline first
    cells = {line[:36].strip(): line[36:].split("  ") for line in lines[2:]}
    found = {label: [cell.strip() for cell in row if cell.strip()] for label, row in cells.items()}
    assert found["prefill tokens: from the cache"] == ["200 (50.0%)", "400 (100.0%)"]
    assert found["forward steps: prefill + decode"] == ["3 + 4", "3 + 4"]
    assert found["TTFT mean / p50 / p99, s"] == ["4.5 / 4.5 / 8.9", "4.5 / 4.5 / 8.9"]
    assert found["requests in a decode step, mean"] == ["7.5", "7.5"]
    assert found["distinct / total KV while decoding"] == ["25%", "25%"]
    assert found["time in the policy"] == ["0.25%", "0.25%"]
    assert found["tokens per CPU-second, of fcfs'"] == ["1.00", "2.00"]
    assert found["admissions / stops / barrier waits"] == ["-", "10 / 1 / 7"]
    assert len({len(line) for line in lines}) == 1


def test_nothing_cacheable_is_all_reused() -> None:
    assert table.reused({"cached_tokens": 0, "cacheable_tokens": 0}) == 1.0


def _sweep() -> dict[str, Any]:
    names = ["8 families x 8, 256 shared + 64 own tokens", "8 families x 8, 512 shared + 64 own tokens"]
    arms = [(arm, workload) for arm in ("fcfs", "feather") for workload in names]
    return reported([run(arm, cached=9, cpu_seconds=1.0, workload=each) for arm, each in arms], workloads=names)


@pytest.mark.parametrize("accelerator", [None, "1 x a GPU"])
@pytest.mark.parametrize("shape", ["bars", "sweep", "nothing counted"])
def test_the_picture(report: dict[str, Any], tmp_path: Path, accelerator: str | None, shape: str) -> None:
    if shape == "sweep":
        report = _sweep()
    elif shape == "nothing counted":
        report = reported([run("feather", cached=1, cpu_seconds=None, counters=None)])
    report = report | {"machine": report["machine"] | {"accelerator": accelerator}}
    paths = [tmp_path / "demo.png", tmp_path / "demo.svg"]
    draw(report, paths, subtitle="ten requests\non a machine", note="a note")
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in paths[1].read_text()
    first = paths[1].read_bytes()
    draw(report, paths, subtitle="ten requests\non a machine", note="a note")
    assert paths[1].read_bytes() == first


def test_the_machine_is_described_and_not_named() -> None:
    import socket

    words = in_words(CIRCUMSTANCES)
    assert f"{CIRCUMSTANCES.machine['cores']} cores" in words
    assert CIRCUMSTANCES.versions["sglang"] in words
    assert socket.gethostname() not in json.dumps(CIRCUMSTANCES.machine)


def test_the_counters_of_a_server() -> None:
    before = parse('sglang:cuda_graph_passes_total{mode="decode_none"} 2.0\n')
    now = parse(
        "# TYPE sglang:cuda_graph_passes_total counter\n"
        'sglang:cuda_graph_passes_total{mode="prefill_none",tp_rank="0"} 4.0\n'
        'sglang:cuda_graph_passes_total{engine_type="unified",mode="decode_none",tp_rank="0"} 7.0\n'
        'sglang:cuda_graph_passes_total{mode="decode_cuda_graph",tp_rank="0"} 1.0\n'
        "# TYPE sglang:realtime_tokens_total counter\n"
        'sglang:realtime_tokens_total{mode="prefill_compute"} 37.0\n'
        'sglang:realtime_tokens_total{mode="prefill_cache"} 1000.0\n'
        'sglang:realtime_tokens_total{mode="decode"} 15.0\n'
        "# TYPE sglang:num_requests_total counter\n"
        "sglang:num_requests_total 65.0\n"
    )
    assert now == Counters(prefill_steps=4, decode_steps=8, prefill_tokens=37, cached_tokens=1000, decode_tokens=15)
    assert now.since(before).decode_steps == 6
    assert now.tokens == 1052
