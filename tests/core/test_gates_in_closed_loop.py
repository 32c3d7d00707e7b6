"""Each gate in closed loop, through the core and the index: a trace on which it stops, and one on which it must not."""

from __future__ import annotations

import pytest

from feather_sglang.bench.gates_runs import FAMILIES, SURFACES, run
from feather_sglang.core.gates import make_gate
from feather_sglang.core.gates.fixed import Fixed
from feather_sglang.core.gates.guard import Guard
from feather_sglang.core.settings import GATES

MIXED = next(surface for surface in SURFACES if surface.name == "knee-admission")
"""Eight families, and a cache that holds one of their prefixes."""
UNSHARED = next(surface for surface in SURFACES if surface.name == "unshared")
ONE_FAMILY = MIXED._replace(families=FAMILIES._replace(prefixes=FAMILIES.prefixes[:1]))
STEPS = 500
FULL = 100
"""Of 128 rows: those that ended in the last step are empty in this one."""


def rate(done, start):
    return sum(done.tokens[start:]) / sum(done.seconds[start:])


@pytest.mark.parametrize("gate", sorted(set(GATES) - {"never"}))
def test_a_gate_stops_where_families_compete(gate):
    done = run(MIXED, make_gate(gate), 1, STEPS, "held")
    assert done.stops > STEPS / 50
    assert min(done.tokens[100:]) < FULL, "a stop left rows empty"


def test_never_stops_nowhere():
    for surface in (MIXED, UNSHARED, ONE_FAMILY):
        done = run(surface, make_gate("never"), 1, STEPS, "held")
        assert done.stops == 0
        assert min(done.tokens) > FULL, "rows were left empty"


@pytest.mark.parametrize("gate", ["static", "ucb", "q"])
def test_a_gate_does_not_stop_a_family_that_is_alone(gate):
    """Nobody of it costs the tip; ``model`` joins prefill passes, and does no more (below)."""
    done = run(ONE_FAMILY, make_gate(gate), 1, STEPS)
    assert done.stops == 0
    assert min(done.tokens) > FULL


def test_model_keeps_no_family_back_that_is_alone():
    gate = make_gate("model")
    done = run(ONE_FAMILY, gate, 1, STEPS)
    never = run(ONE_FAMILY, make_gate("never"), 1, STEPS)
    assert gate.state()["stops"]["mixing"] == 0
    assert rate(done, 300) >= 0.99 * rate(never, 300)


@pytest.mark.parametrize("gate", ["static", "model"])
def test_where_nothing_is_shared_nothing_is_lost(gate):
    done = run(UNSHARED, make_gate(gate), 1, STEPS)
    assert rate(done, 0) >= 0.99 * rate(run(UNSHARED, make_gate("never"), 1, STEPS), 0)


class Few(Fixed):
    """Fills a batch to four rows."""

    name = "few"

    def cut(self, view, candidates):
        return max(4 - len(view.order), 0)


def test_the_guard_drops_a_gate_that_loses_where_nothing_is_shared():
    short = UNSHARED._replace(families=UNSHARED.families._replace(suffix=(64, 128)))
    guarded, first_round = Guard(Few()), Guard.EPISODE * Guard.ROUND
    done, never = (run(short, gate, 1, first_round + 400) for gate in (guarded, make_gate("never")))
    assert guarded.state()["drops"] == 1
    assert rate(done, 0) < 0.9 * rate(never, 0)
    assert rate(done, first_round + 64) >= 0.97 * rate(never, first_round + 64)
