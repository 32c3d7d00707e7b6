"""The guard rail: a gate that loses against never is dropped, and tried again."""

from __future__ import annotations

import logging

from feather_sglang.core.gates import gate_of
from feather_sglang.core.gates.fixed import Fixed
from feather_sglang.core.gates.guard import Guard
from feather_sglang.core.interface import Candidate, Step, View
from feather_sglang.core.settings import Settings

VIEW = View([1], [0], 0, 0, 0, 1, 0)
ANYBODY = [Candidate(1, 1, 1, 1, 1, 1, 0)]


class Stops(Fixed):
    name = "stops"

    def cut(self, view, candidates):
        return 0


def guarded():
    """A guard that was told of a step, so that it asks its gate."""
    guard = Guard(Stops())
    guard.observe(Step(0, "prefill", 0.0, 0, 0, 0, 0, 0))
    return guard


def drive(guard, steps, gated_seconds, free_seconds):
    """Steps of 10 tokens that take one time where the gate stops and another where it does not."""
    stopped = 0
    for _ in range(steps):
        taken = guard.cut(VIEW, ANYBODY)
        stopped += taken == 0
        guard.observe(Step(0, "decode", free_seconds if taken else gated_seconds, 10, 10, 0, 0, 0))
    return stopped


ROUND = Guard.EPISODE * Guard.ROUND


def test_a_gate_that_is_told_nothing_stops_nothing():
    guard = Guard(Stops())
    assert all(guard.cut(VIEW, ANYBODY) == 1 for _ in range(3 * Guard.EPISODE))
    guard.observe(Step(0, "decode", 1.0, 10, 10, 0, 0, 0))
    assert [guard.cut(VIEW, ANYBODY) for _ in range(Guard.UNTOLD)] == [0] * Guard.UNTOLD
    assert guard.cut(VIEW, ANYBODY) == 1, "nobody tells it any more"
    guard.observe(Step(1, "decode", 1.0, 10, 10, 0, 0, 0))
    assert guard.cut(VIEW, ANYBODY) == 0


def test_a_small_share_is_not_gated():
    guard = guarded()
    assert drive(guard, ROUND, 1.0, 1.0) == ROUND - Guard.EPISODE
    assert guard.state() == {"dropped": None, "drops": 0}


def test_a_gate_that_wins_stays(caplog):
    guard = guarded()
    drive(guard, 4 * ROUND, 0.9, 1.0)
    assert guard.dropped is None
    assert not caplog.records


def test_a_gate_that_loses_is_dropped_loudly_and_tried_again(caplog):
    guard = guarded()
    with caplog.at_level(logging.WARNING):
        drive(guard, ROUND, 1.1, 1.0)
        assert guard.state() == {"dropped": "9.1% fewer tokens per second than without it", "drops": 1}
        assert "the gate stops is dropped for now: 9.1% fewer" in caplog.text
        assert drive(guard, Guard.FIRST_PAUSE * ROUND, 1.1, 1.0) == 0, "nothing is stopped meanwhile"
        assert "tried again" in caplog.text
        assert drive(guard, ROUND, 1.1, 1.0) == ROUND - Guard.EPISODE
        assert guard.drops == 2
        assert drive(guard, Guard.FIRST_PAUSE * ROUND, 1.1, 1.0) == 0
        assert drive(guard, Guard.FIRST_PAUSE * ROUND, 1.1, 1.0) == 0, "twice as long"
    drive(guard, 3 * ROUND, 0.9, 1.0)
    assert guard.dropped is None


def test_outliers_do_not_drop_a_gate():
    guard = guarded()
    for n in range(2 * ROUND):
        guard.cut(VIEW, ANYBODY)
        guard.observe(Step(0, "decode", 40.0 if n % 500 == 9 else 1.0, 10, 10, 0, 0, 0))
    assert guard.dropped is None


def test_prefill_counts_in_full_however_short_the_decode_steps_are():
    """Four rows take 0.4 s and a pass of a second for 32 tokens, forty take 1.5 s for 40: a seventh less."""
    guard = guarded()
    for step in range(ROUND):
        taken = guard.cut(VIEW, ANYBODY)
        if taken or step % 8 == 0:
            guard.observe(Step(0, "prefill", 1.0, 0, 1, 0, 0, 0, 1000))
        guard.observe(Step(0, "decode", 0.5, 40, 40, 0, 0, 0) if taken else Step(0, "decode", 0.05, 4, 4, 0, 0, 0))
    assert guard.drops == 1
    assert guard.dropped.startswith("14")


def test_gates_that_learn_are_guarded():
    assert isinstance(gate_of(Settings(gate="model")), Guard)
    assert gate_of(Settings(gate="model")).name == "model"
    assert not isinstance(gate_of(Settings(gate="static")), Guard)
