"""The orders bench: what it runs, and what it says of it."""

from __future__ import annotations

import json

import pytest

from feather_sglang.bench import orders, orders_runs
from feather_sglang.bench.orders_picture import draw
from feather_sglang.bench.orders_report import render, report
from feather_sglang.bench.orders_runs import WORKLOADS, arms, run
from feather_sglang.bench.results import Circumstances
from feather_sglang.cli.errors import UsageError
from feather_sglang.simulate.profiles import PROFILES

CIRCUMSTANCES = Circumstances("feather bench orders", {"cpu": "any"}, {"sglang": "0"}, "any")


@pytest.fixture(scope="module")
def result():
    """Every arm on every workload, cut short."""
    patch = pytest.MonkeyPatch()
    patch.setattr(orders_runs, "SATURATING", 80)
    few = [workload._replace(requests=30) for workload in WORKLOADS]
    runs = {workload.name: [run(workload, PROFILES["h200"], seed, (0.0, 0.2)) for seed in range(2)] for workload in few}
    patch.undo()
    return report(runs, few, CIRCUMSTANCES)


def test_every_arm_on_every_workload(result):
    names = [arm.name for arm in arms((0.0, 0.2))]
    assert names == ["fcfs", "lpm", "lpm-lifted", "hrrn", "hrrn-lifted", "held", "missing 0", "missing 0.2"]
    assert list(result["orders"]) == names
    for of_arm in result["orders"].values():
        assert list(of_arm) == [workload.name for workload in WORKLOADS]
        for figures in of_arm.values():
            assert figures["throughput_tok_s"] > 0
            assert figures["ttft_tokens"]["p99"] >= figures["ttft_tokens"]["p50"] > 0
            least, most = figures["p99_tokens_ratio_to_hrrn_spread"]
            assert least <= figures["p99_tokens_ratio_to_hrrn"] <= most
    assert {each["p99_tokens_ratio_to_hrrn"] for each in result["orders"]["hrrn"].values()} == {1.0}
    assert {"schema", "command", "machine", "versions", "rows"} <= result.keys()
    json.dumps(result)


def test_held_without_sharing_is_fcfs(result):
    same = [result["orders"][arm]["unshared"] for arm in ("fcfs", "held")]
    assert same[0] == same[1]


def test_the_table_shows_the_time_per_token_too(result):
    text = render(result, "mixed-90")
    assert "TPOT ms mean" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_picture(result, tmp_path):
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "orders.svg", tmp_path / "orders.png"]
    draw(result, paths, subtitle="any machine")
    assert all(path.stat().st_size > 1_000 for path in paths)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="there is no folder"):
        orders.main(["--json", str(tmp_path / "none" / "orders.json")])
