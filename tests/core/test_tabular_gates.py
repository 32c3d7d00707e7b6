"""The arithmetic of the gates over buckets: ucb and q."""

from __future__ import annotations

import math

import pytest

from feather_sglang.core.gates import make_gate
from feather_sglang.core.gates.buckets import bucket
from feather_sglang.core.interface import Candidate, Step, View


def view(rows):
    return View(order=range(rows), shared=[0] * rows, total_kv=0, distinct_kv=0, tip_chunks=0, waiting=9, held=0)


def stranger(peers=0, lost=20):
    return Candidate(1, 1, 1, 1, 20, 20 - lost, peers)


def decode(seconds, tokens, kind="decode", seq=0):
    return Step(seq, kind, seconds, tokens, tokens, 0, 0, 0)


def reward(gate, rows, seconds):
    """A decision, and what its step took."""
    taken = gate.cut(view(rows), [stranger()])
    gate.observe(decode(seconds, 10))
    return taken


def test_buckets():
    assert bucket(0, stranger()) == (0, 5, 0)
    assert bucket(43, stranger(peers=43)) == (10, 5, 10)
    assert bucket(400, stranger(peers=400, lost=3)) == (10, 3, 10)
    assert bucket(7, Candidate(1, 1, 1, 1, 3, 12, 0)) == (1, -5, 0)


@pytest.mark.parametrize("name", ["ucb", "q"])
def test_outright(name):
    gate = make_gate(name)
    assert all(gate.cut(view(0), [stranger()]) == 1 for _ in range(20)), "the first of an empty batch"
    sibling = Candidate(1, 1, 1, 1, 20, 20, 0)
    assert all(gate.cut(view(5), [sibling] * 3) == 3 for _ in range(20)), "no tip is lost"


def test_ucb_tries_each_action_and_keeps_the_better():
    gate = make_gate("ucb")
    assert reward(gate, 8, 0.001) == 1, "never tried: add"
    assert reward(gate, 8, 0.01) == 0, "stop was never tried"
    # 10,000 tokens/s after ADD against 1,000 after STOP: the bonus of c = 200 does not bridge that.
    assert [reward(gate, 8, 0.001) for _ in range(5)] == [1] * 5
    assert gate.state()["prefers_stop"] == 0


def test_ucb_stops_where_stopping_pays():
    gate = make_gate("ucb")
    reward(gate, 8, 0.01)
    reward(gate, 8, 0.001)
    assert [reward(gate, 8, 0.001) for _ in range(5)] == [0] * 5
    assert gate.state()["prefers_stop"] == 1


def test_ucb_scores():
    gate = make_gate("ucb")
    gate.load({"table": {"2,5,0": [4, 100.0, 1, 50.0]}})
    add = 100 + 200 * math.sqrt(math.log(6) / 4)
    stop = 50 + 200 * math.sqrt(math.log(6) / 1)
    assert stop > add
    assert gate.cut(view(8), [stranger()]) == 0, "tried less, so its bonus is larger"


def test_prefill_is_part_of_the_reward():
    gate = make_gate("ucb")
    gate.cut(view(8), [stranger()])
    gate.observe(decode(0.75, 0, "prefill"))
    gate.observe(decode(0.25, 10))
    assert gate.dump() == {"table": {"2,5,0": [1, 10.0, 0, 0.0]}}


@pytest.mark.parametrize("name", ["ucb", "q"])
def test_a_decision_is_rewarded_by_its_own_step_however_late_that_is_told(name):
    prompt, late = make_gate(name), make_gate(name)
    prompt.EPSILON = prompt.LEAST = late.EPSILON = late.LEAST = 0.0
    steps = [decode(0.001 * (1 + n), 10, seq=n) for n in range(8)]
    for step in steps:
        for gate in (prompt, late):
            gate.cut(view(4 * step.seq + 4)._replace(step=step.seq), [stranger()])
        prompt.observe(step)
    assert late.dump()["table"] == {}
    for step in steps:
        late.observe(step)
    assert late.dump() == prompt.dump()
    assert len(late.dump()["table"]) == 8


def test_q_moves_towards_the_reward():
    gate = make_gate("q")
    gate.EPSILON = gate.LEAST = 0.0
    assert reward(gate, 8, 0.01) == 1, "a tie adds"
    for _ in range(20):
        reward(gate, 8, 0.002)
    better = gate.dump()["table"]["2,5,0"]
    assert better[1] > 0, "above the mean so far"
    while gate.dump()["table"]["2,5,0"][1] > 0:
        reward(gate, 8, 0.5)
    assert reward(gate, 8, 0.02) == 0, "below the mean of all: stop is worth a try"


def test_q_explores_by_its_seed():
    def decisions(seed):
        gate = make_gate("q", seed)
        gate.EPSILON = gate.LEAST = 1.0
        return [gate.cut(view(8), [stranger()]) for _ in range(50)]

    assert decisions(1) == decisions(1)
    assert decisions(1) != decisions(2)
    assert set(decisions(1)) == {0, 1}


@pytest.mark.parametrize("name", ["ucb", "q"])
def test_learned_state_returns(name):
    gate = make_gate(name)
    for rows in (4, 8, 8, 12):
        reward(gate, rows, 0.01)
    other = make_gate(name)
    other.load(gate.dump())
    assert other.dump() == gate.dump()
    assert other.state()["states"] == gate.state()["states"] == 3


@pytest.mark.parametrize("name", ["ucb", "q"])
@pytest.mark.parametrize("table", [{"1,2": [1, 2, 3, 4]}, {"1,2,3": [1, 2]}, {"1,2,3": [1, 2, 3, float("nan")]}, 7])
def test_what_is_no_table_is_refused(name, table):
    with pytest.raises(ValueError, match="expected"):
        make_gate(name).load({"table": table, "decisions": 1, "mean": 1.0})
