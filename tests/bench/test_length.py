"""``feather bench length``: what it runs on modelled steps, the keys that programs read, the tables and the picture."""

from __future__ import annotations

import json
from typing import Any

import pytest

from feather_sglang.bench import length, length_runs
from feather_sglang.bench.length_picture import draw
from feather_sglang.bench.length_report import render, report
from feather_sglang.bench.length_runs import PREDICTORS, Arm, arms, serve
from feather_sglang.bench.results import Circumstances
from feather_sglang.cli import main
from feather_sglang.cli.errors import UsageError

CIRCUMSTANCES = Circumstances("feather bench length", {"cpu": "any"}, {"sglang": "0"}, "any")
PARKING = {"identical": True, "parks": 3, "retractions_off": 2, "retractions_on": 0}
PARKING |= {"recomputed_off": 100, "recomputed_on": 0}
ALIGNED = {"workload": "aligned decode", "throughput_ratio": 1.0, "throughput_ratio_spread": [0.9, 1.1]}
ALIGNED |= {"declined": 9, "aligned_steps": 0}
SKEW = {"skew_ratio": 1.01, "verdict": "alignment cannot pay", "device": "cpu"}


@pytest.fixture(scope="module")
def served() -> dict[Arm, dict[str, Any]]:
    """The arms that matter, on all of the sample."""
    wanted = [Arm("mooncake", "fcfs"), Arm("mooncake", "lanes")]
    wanted += [Arm("mooncake", "lanes", 2, predictor) for predictor in ("oracle", "family")]
    return {arm: serve(arm) for arm in wanted}


def test_two_lanes_with_known_lengths(served):
    """Under bursts: shorter mean latency, no later p99, and as many tokens a second."""
    fcfs, one, oracle, family = served.values()
    assert oracle["latency_s"]["mean"] <= 0.8 * fcfs["latency_s"]["mean"]
    assert oracle["latency_s"]["p99"] <= 1.1 * fcfs["latency_s"]["p99"]
    assert oracle["throughput_tok_s"] >= 0.99 * fcfs["throughput_tok_s"]
    assert oracle["length_error"] == 0
    assert oracle["latency_s"]["mean"] < one["latency_s"]["mean"]
    assert 0 < family["length_error"] < 1.5


@pytest.fixture(scope="module")
def result():
    """Every arm with few requests."""
    patch = pytest.MonkeyPatch()
    few = {name: length_runs.jobs(name)[:60] for name in ("mooncake", "uniform")}
    patch.setattr(length_runs, "jobs", few.get)
    patch.setattr("feather_sglang.bench.simulate_bins.LEAST", 512)
    patch.setattr("feather_sglang.bench.simulate_bins.REQUESTS", 512)
    rows = [serve(arm) for name in few for arm in arms(name, (1, 2, 4))]
    rows += [length_runs.theory(count) for count in (1, 2)]
    patch.undo()
    return report(rows, PARKING, ALIGNED, SKEW, CIRCUMSTANCES)


def test_the_keys_of_the_contract(result):
    assert result.keys() >= {"schema", "command", "machine", "versions", "rows"}
    assert result["parking"] == PARKING
    assert result["skew_ratio"] == 1.01
    assert 0 <= result["theory_max_error"] < 0.2
    assert result["bins"].keys() == {"static", "lanes"}
    for mode in result["bins"].values():
        assert list(mode) == ["1", "2", "4"]
        for by_predictor in mode.values():
            assert by_predictor.keys() == PREDICTORS.keys() == {"oracle", "noise30", "noise100", "family"}
            for figures in by_predictor.values():
                assert figures.keys() == {"throughput_ratio", "mean_latency_ratio", "p99_latency_ratio"}
                assert all(0 < value < 20 for value in figures.values())
    json.dumps(result)


def test_the_tables(result):
    text = render(result)
    assert "alignment cannot pay" in text
    assert "retractions 2 -> 0" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_picture(result, tmp_path):
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "length.svg", tmp_path / "length.png"]
    draw(result, paths, subtitle="any machine")
    assert all(path.stat().st_size > 1_000 for path in paths)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="there is no folder"):
        length.main(["--json", str(tmp_path / "none" / "length.json")])


def test_simulated_bins(tmp_path, capsys):
    path = tmp_path / "bins.json"
    argv = ["simulate", "uniform:8,24", "--bins", "1,2", "--batch", "8", "--limit", "800", "--json", str(path)]
    assert main.main(argv) == 0
    found = json.loads(path.read_text())
    assert [row["bins"] for row in found["rows"]] == [1, 2]
    assert found["theory_max_error"] < 0.03
    assert "requests a step" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["uniform:9,3", "--bins", "1"], "the smaller first"),
        (["uniform:1,3", "--bins", "0"], "--bins: '0'"),
        (["uniform:1,3", "--bins", "65"], "at most 64"),
        (["uniform:1,3", "--bins", "1", "--batch", "x"], "--batch: 'x'"),
        (["uniform:1,3", "--bins", "1", "--svg", "x.svg"], "draws no picture"),
        (["uniform:1,3"], "uniform:1,3"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(argv, part, capsys):
    assert main.main(["simulate", *argv]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert part in lines[0]
