"""``feather bench gates``: what its table says of runs, and the sweep of a gate's constants."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from feather_sglang.bench import gates_sweep
from feather_sglang.bench.gates import main
from feather_sglang.bench.gates_report import report
from feather_sglang.bench.gates_runs import SURFACES, Trajectory
from feather_sglang.bench.results import Circumstances
from feather_sglang.cli.errors import UsageError
from feather_sglang.core.gates.q import Q
from feather_sglang.core.settings import GATES

CIRCUMSTANCES = Circumstances(command="", machine={}, versions={}, workload="")
STEPS = 1000
EVEN = Trajectory([1.0] * STEPS, [100] * STEPS, 0)
SLOW = Trajectory([1.25] * STEPS, [100] * STEPS, 0)


def slow_until(step, seconds=2.0):
    return Trajectory([seconds] * step + [1.0] * (STEPS - step), [100] * STEPS, step)


def judged(name, other=SLOW, **runs):
    """Of two seeds each; ``other`` is what all gates do that are not named."""
    surface = next(surface for surface in SURFACES if surface.name == name)
    done = dict.fromkeys((*GATES, "a threshold"), other) | runs
    gates = report({name: {gate: [run, run] for gate, run in done.items()}}, [surface], CIRCUMSTANCES)["gates"]
    return {gate: of_gate[name] for gate, of_gate in gates.items()}


def test_how_soon_a_gate_is_near_the_best():
    """Steps of 2 s instead of 1: a window of 300 is within 5% when at most 15 of them are in it."""
    gates = judged("cpu", never=EVEN, ucb=slow_until(400), q=slow_until(400, 1.05), model=EVEN)
    assert gates["ucb"] == {"steps_to_5pct": 400 - 15, "final_ratio_to_best": 1.0}
    assert gates["q"]["steps_to_5pct"] == 0
    assert gates["model"] == {"steps_to_5pct": 0, "final_ratio_to_best": 1.0}
    assert gates["static"] == {"steps_to_5pct": None, "final_ratio_to_best": pytest.approx(0.8)}


def test_one_late_window_below_is_not_near():
    late = Trajectory([1.0] * 650 + [2.0] * 16 + [1.0] * 334, [100] * STEPS, 0)
    assert judged("cpu", never=EVEN, model=late)["model"]["steps_to_5pct"] == 651


def test_the_best_is_a_fixed_gate():
    """A gate that learns is not compared with another that does, and ``static`` is not among the fixed ones."""
    fast = Trajectory([0.5] * STEPS, [100] * STEPS, 0)
    gates = judged("cpu", never=EVEN, ucb=fast, static=fast)
    assert gates["ucb"]["final_ratio_to_best"] == gates["static"]["final_ratio_to_best"] == pytest.approx(2.0)
    assert judged("cpu", other=EVEN, never=SLOW)["never"]["final_ratio_to_best"] == pytest.approx(0.8)


def test_a_drift_counts_from_the_drift():
    def twice(first, second):
        return Trajectory(first.seconds + second.seconds, first.tokens + second.tokens, 0)

    runs = {"never": twice(EVEN, EVEN), "model": twice(SLOW, slow_until(100)), "ucb": twice(SLOW, EVEN)}
    gates = judged("drift", twice(EVEN, SLOW), **runs)
    assert gates["ucb"]["steps_to_5pct"] == 0
    assert gates["model"]["steps_to_5pct"] == 100 - 15
    assert gates["static"]["steps_to_5pct"] is None


def test_regret_is_against_what_the_best_took_for_as_many_tokens():
    ends_late = Trajectory([1.0] * 500 + [3.0] * 500, [100] * STEPS, 0)
    few = Trajectory([1.0] * STEPS, [50] * STEPS, 0)
    runs = {gate: [ends_late] for gate in GATES} | {"q": [few], "ucb": [slow_until(100, 3.0)], "static": [EVEN]}
    rows = report({"cpu": runs}, SURFACES[:1], CIRCUMSTANCES)["rows"]
    end = {row["gate"]: row["regret_steps"][-1] for row in rows}
    assert end["never"] == [1000, 0.0], "the best loses nothing to itself"
    worst = {row["gate"]: row["worst_ratio_after_300"] for row in rows}
    assert worst["never"] == 1.0
    assert worst["ucb"] == pytest.approx(500 / 300), "at the start it was slower, and that does not count"
    assert worst["q"] == pytest.approx(50 / 60), "of the first such window"
    assert end["ucb"][1] == pytest.approx((1200 - 2000) / 2)
    assert end["static"][1] == pytest.approx((1000 - 2000) / 2)
    assert end["q"][1] == pytest.approx((1000 - 500) / 2), (
        "for half the tokens the best took 500 s; its mean step is 2 s"
    )


def test_seeds_are_paired_and_their_ratios_averaged():
    half = Trajectory([2.0] * STEPS, [100] * STEPS, 0)
    of_surface = {gate: [EVEN, half] for gate in GATES} | {"ucb": [EVEN, EVEN]}
    gates = report({"cpu": of_surface}, SURFACES[:1], CIRCUMSTANCES)["gates"]
    assert gates["ucb"]["cpu"]["final_ratio_to_best"] == pytest.approx((1 + 2) / 2)
    assert gates["model"]["cpu"]["final_ratio_to_best"] == 1.0


def test_a_sweep_tries_each_with_each_and_says_which_are_in_use(monkeypatch):
    monkeypatch.setattr(gates_sweep, "SURFACES", [s for s in SURFACES if s.name == "roofline-sorted"])
    monkeypatch.setattr(gates_sweep, "GRIDS", {"q": {"EPSILON": (1.0, Q.EPSILON), "DECAY": (1e9, Q.DECAY)}})
    with ThreadPoolExecutor(1) as pool:
        result = gates_sweep.sweep("q", 1, 700, "held", pool, CIRCUMSTANCES)
    rows = result["rows"]
    assert len(rows) == 4
    assert rows == sorted(rows, key=lambda row: -row["mean"])
    assert rows[0]["mean"] > rows[-1]["mean"] > 0.5
    (used,) = [row for row in rows if row["in_use"]]
    assert used["constants"] == {"EPSILON": Q.EPSILON, "DECAY": Q.DECAY}
    assert used["worst"] == used["mean"] == used["rate_to_never"]["roofline-sorted"]
    assert "<- in use" in gates_sweep.render(result, most=1)


def test_the_constants_in_use_are_in_the_grid():
    for gate, grid in gates_sweep.GRIDS.items():
        made = gates_sweep.make_gate(gate)
        assert all(getattr(made, name) in values for name, values in grid.items())


def test_a_sweep_draws_no_picture(tmp_path):
    with pytest.raises(UsageError, match="draws no picture"):
        main(["--sweep", "q", "--svg", str(tmp_path / "x.svg")])


def test_too_few_steps_to_judge_are_refused():
    with pytest.raises(UsageError, match="at least 600 steps"):
        main(["--steps", "599"])
    with pytest.raises(UsageError, match="-1 seeds"):
        main(["--seeds", "-1"])
