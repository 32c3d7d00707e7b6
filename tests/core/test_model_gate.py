"""The gate that learns costs: the fit, the batch as it forms, and when it stops."""

from __future__ import annotations

import json
import random

import pytest

from feather_sglang.bench.gates_runs import SURFACES, noise, run
from feather_sglang.core.gates import make_gate
from feather_sglang.core.gates.forming import Forming
from feather_sglang.core.gates.rates import Rate, Trial
from feather_sglang.core.gates.regression import Affine, Coefficients, Load, Regression, nonnegative
from feather_sglang.core.interface import Candidate, Step, View

TRUE = Coefficients(0.02, 1e-4, 5e-8, 4e-7, 2e-7, 10_368.0)


def loads(n, seed=1):
    """Batches of one to eight families of 8,192 tokens."""
    rng = random.Random(seed)
    for _ in range(n):
        families, rows = rng.randint(1, 8), rng.randint(8, 128)
        private = rows * rng.randint(100, 2000)
        yield Load(rows, rows * 8192 + private, families * 8192 + private, families * 8192.0)


def fitted(true, n=600, seed=1):
    fit, seen = Regression(), noise(seed)
    for load in loads(n, seed):
        fit.observe(load, seen(true.seconds(load)))
    fit.solve()
    return fit


@pytest.mark.parametrize("true", [TRUE, TRUE._replace(missed=0.0, edge=0.0), Coefficients(step=0.05)])
def test_the_fit_predicts_what_it_has_not_seen(true):
    fit = fitted(true)
    errors = [fit.coefficients.seconds(load) / true.seconds(load) - 1 for load in loads(200, seed=2)]
    assert abs(sum(errors)) / len(errors) < 0.05, "the mean of the noise is above 1"
    assert max(map(abs, errors)) < 0.25
    assert min(fit.coefficients) >= 0
    assert fit.changes == 0


def test_no_knee_is_seen_where_there_is_none():
    assert fitted(TRUE._replace(missed=0.0)).coefficients.missed == 0
    assert fitted(TRUE).coefficients.edge > 0


def test_another_device_is_noticed_and_learned():
    fit, seen = fitted(TRUE), noise(3)
    other = Coefficients(*(2 * x for x in TRUE[:5]), edge=TRUE.edge)
    steps = list(loads(300, seed=4))
    for n, load in enumerate(steps):
        fit.observe(load, seen(other.seconds(load)))
        if n % 16 == 0:
            fit.solve()
    assert fit.changes >= 1
    errors = [abs(fit.coefficients.seconds(load) / other.seconds(load) - 1) for load in steps]
    assert sum(errors) / len(errors) < 0.1


def test_single_outliers_are_cut():
    fit = fitted(Coefficients(step=0.05))
    before = fit.coefficients.step
    assert fit.observe(Load(1, 0, 0, 0), 50.0) == pytest.approx(before * fit.OUTLIER)


def test_nonnegative_least_squares():
    assert nonnegative([[2.0, 0.0], [0.0, 4.0]], [2.0, -4.0]) == pytest.approx([1.0, 0.0], rel=0.01)
    assert nonnegative([[0.0, 0.0], [0.0, 4.0]], [0.0, 4.0]) == pytest.approx([0.0, 1.0], rel=0.01)


def test_the_fixed_part_of_a_prefill_pass():
    rng, seen = random.Random(1), noise(1)
    fit, floor = Affine(), Affine()
    for _ in range(400):
        tokens = rng.randint(200, 2000)
        fit.observe(tokens, seen(0.5 + 0.0003 * tokens))
        floor.observe(tokens, seen(0.0006 * tokens))
    assert 0.2 < fit.base < 0.55
    assert floor.base < 0.02
    assert fit.base < fit.estimate == pytest.approx(0.5, rel=0.2), "for comparing, without a margin"


def test_a_chunk_of_a_prompt_beside_a_decode_step_is_a_prefill_pass():
    gate, rng, seen = make_gate("model"), random.Random(1), noise(1)

    def step(kind, seconds, **fields):
        gate.observe(Step(0, kind, seen(seconds), 8, 8, 8000, 8000, 1000, **fields))

    for _ in range(400):
        tokens = rng.randint(200, 2000)
        gate.cut(view(8), [])
        step("decode", 0.05)
        step("mixed", 0.05 + 0.5 + 0.0003 * tokens, computed=tokens)
    assert 0.2 < gate.state()["prefill_pass"] < 0.55
    assert gate.state()["tokens_per_second"]["fill"] == pytest.approx(16 / (0.1 + 0.5 + 0.0003 * 1100), rel=0.1)


def view(*families, prefix=640):
    """A batch of families of so many rows."""
    shared = [prefix if i else 0 for rows in families for i in range(rows)]
    rows, total = len(shared), len(shared) * (prefix + 10)
    return View(range(rows), shared, total, len(families) * prefix + 10 * rows, 0, 100, 0)


SIBLING, STRANGER = Candidate(1, 10, 650, 10, 10, 10, 5), Candidate(2, 10, 650, 650, 10, 0, 5)


def test_effective_families():
    assert Forming(view(4)).families == 1
    assert Forming(view(4, 4)).families == pytest.approx(2)
    assert Forming(view(4, 4)).competing == pytest.approx(2 * 640)
    assert Forming(view(98, 2)).families == pytest.approx(100**2 / (98**2 + 2**2))
    assert (Forming(view(1, 1)).families, Forming(view(1, 1)).strangers) == (0, 2)
    assert Forming(view()).competing == 0


def test_candidates_join_their_families():
    forming = Forming(view(4)).add([SIBLING, STRANGER, SIBLING])
    assert (forming.rows, forming.shared) == (7, 2 * 640)
    assert forming.families == pytest.approx(49 / (25 + 4))
    assert Forming(view(4)).opens(STRANGER)
    assert not Forming(view(4)).opens(SIBLING)
    assert not Forming(view(1, 1)).opens(STRANGER), "nothing is shared"
    assert not Forming(view(4)).opens(Candidate(3, 99, 99, 99, 1, 0, 0)), "short beside a long prefix"


def test_the_cost_of_a_regime_has_no_prefill_but_its_fixed_part():
    filling, full = Rate(100), Rate(100)
    for _ in range(10):
        filling.add(50, 0.5, 4.0, 1)
        full.add(50, 0.5, 0.4, 1)
    assert filling.cost(0.1) == full.cost(0.1) == pytest.approx(0.6 / 50)
    assert full.value == pytest.approx(50 / 0.9)
    assert Rate(100).cost(0.1) == Rate(100).value == 0.0


def test_a_trial_ends_when_what_was_lost_adds_up():
    def family(trial, steps, seconds):
        for _ in range(steps):
            trial.add(10, seconds)
        return trial.end(cost=0.1)

    trial, half = Trial(), 0.5 - Trial.SMALL
    assert not family(trial, 400, 2.0), "what was there before"
    assert not family(trial, 40, 2.0), "40 steps of which half the time is lost, less a little"
    assert trial.lost == pytest.approx(40 * half)
    assert family(trial, 60, 2.0), "more than is allowed"
    assert trial.lost == pytest.approx(100 * half)
    assert not family(trial, 30, 0.5), "won back: twice as fast, and a little"
    assert trial.lost == pytest.approx(100 * half - 30 * (1 + Trial.SMALL))
    assert not family(trial, 400, 0.5)
    assert trial.lost == 0, "nothing is saved up"
    assert not any(family(trial, 40, 1.02) for _ in range(100)), "a little is chance"


def joining(rows=128):
    """A gate that knows its fill and a costly pass, and believes that empty rows cost nothing."""
    gate = make_gate("model")
    gate._enter("fill")
    gate._prefill.base = 1.0
    assert gate.cut(view(), [SIBLING] * rows) == rows
    return gate


def test_joining_leaves_an_eighth_of_the_rows_empty_at_most():
    gate = joining()
    assert gate.cut(view(120), [SIBLING] * 8) == 0
    assert gate.cut(view(113), [SIBLING] * 15) == 0
    assert gate.cut(view(112), [SIBLING] * 4) == 4, "a pass has no room for more"
    assert gate.cut(view(110), [SIBLING] * 4) == 4, "the next one goes on"
    assert gate.state()["stops"]["joining"] == 2


def test_who_is_past_the_bound_takes_the_others_along():
    gate = joining()
    assert gate.cut(view(120)._replace(overdue=1), [SIBLING] * 8) == 8
    gate._enter("alike")
    assert gate.cut(view(120)._replace(overdue=2), [STRANGER, STRANGER, STRANGER]) == 2


def test_a_look_at_several_families_counts_once_rows_are_replaced():
    gate = make_gate("model")
    gate._enter("look mixed")
    assert gate.cut(view(4), [SIBLING, STRANGER] * 4) == 8
    gate.cut(view(8, 4), [])
    gate.cut(view(8), [SIBLING] * 4)
    assert gate._since is None, "four that were there before have ended"
    gate.cut(view(8, 3)._replace(step=7), [SIBLING])
    assert gate._since == 7
    gate._enter("look mixed")
    gate._steps = gate._until
    gate.cut(view(12)._replace(step=9), [])
    assert gate._since == 9, "outputs are longer than the gate's patience"


def surface(name):
    return next(surface for surface in SURFACES if surface.name == name)


def rate(run, start):
    return sum(run.tokens[start:]) / sum(run.seconds[start:])


def test_it_stops_where_the_cache_ends():
    gate = make_gate("model")
    gated = run(surface("knee-admission"), gate, 1, 700, "held")
    assert gate.state()["regime"] == "alike"
    assert gate.state()["stops"]["mixing"] > 100
    assert rate(gated, 300) > 1.3 * rate(run(surface("knee-admission"), make_gate("never"), 1, 700, "held"), 300)


def test_it_does_not_stop_where_rows_are_sorted():
    gate = make_gate("model")
    gated = run(surface("roofline-sorted"), gate, 1, 700)
    assert gate.state()["regime"] == "fill"
    assert rate(gated, 300) > 0.97 * rate(run(surface("roofline-sorted"), make_gate("never"), 1, 700), 300)


def test_it_holds_nothing_back_where_nothing_is_shared():
    gate = make_gate("model")
    run(surface("unshared"), gate, 1, 300)
    assert gate.state()["stops"]["mixing"] == gate.state()["stops"]["probing"] == 0


def test_it_goes_on_from_what_it_learned():
    gate = make_gate("model")
    run(surface("knee-admission"), gate, 1, 400)
    other = make_gate("model")
    other.load(json.loads(json.dumps(gate.dump())))
    assert other.state()["coefficients"].keys() == gate.state()["coefficients"].keys()
    assert other.state()["coefficients"]["step"] == pytest.approx(gate.state()["coefficients"]["step"], rel=0.5)
    for broken in ({}, {"decode": 1}, gate.dump() | {"mean": ["x"] * 4}, gate.dump() | {"decode": {"weight": 1}}):
        with pytest.raises(ValueError, match="this is not what the gate model learned"):
            make_gate("model").load(broken)
