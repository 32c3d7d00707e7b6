"""Gates for batch jobs: static batches, from one lane, and refilling when enough rows are free."""

from __future__ import annotations

from feather_sglang.core.gates.batching import Refill
from feather_sglang.simulate.bins import simulated
from tests.core.test_lanes import engine, send_lengths
from tests.core.test_rules import Engine, done


def static(**settings):
    return Engine(gate="offline", **({"aging": 0.0} | settings))


def end_all(e):
    for id in list(e.alive):
        e.finish(id)


def test_nobody_joins_a_static_batch():
    e = static()
    sent = [e.send((f"p{i}", 100)) for i in range(5)]
    assert e.admit(e.plan(rows=2, step=1)) == sent[:2]
    for step in range(2, 6):
        plan = e.plan(rows=2 - len(e.alive), step=step)
        assert plan.order == []
        e.core.settle({}, {})
        if step == 3:
            e.finish(sent[0])
    assert plan.stop == "gate offline"
    end_all(e)
    assert e.admit(e.plan(rows=3, step=7)) == sent[2:]


def test_a_batch_is_formed_in_as_many_passes_as_it_takes():
    e = static()
    sent = [e.send((f"p{i}", 100)) for i in range(6)]
    for step in (1, 2, 3):
        assert e.admit(e.plan(rows=6 - len(e.alive), prefill_tokens=100, step=step)) == [sent[step - 1]]
    assert e.ids(rows=0, step=4) == []
    assert e.ids(rows=3, step=6) == [], "a step of decoding ends it"


def test_who_waits_for_a_prefix_of_the_batch_joins_it():
    e = static()
    leader, *followers = (e.send(("a", 512), (f"own{i}", 10)) for i in range(4))
    e.admit(e.plan(rows=4, step=1))
    assert e.alive == [leader]
    assert e.admit(e.plan(rows=3, step=2)) == []
    assert e.admit(e.plan(rows=3, step=3)) == []
    assert e.admit(e.plan([done(leader, 512)], rows=3, step=4)) == followers
    late = e.send(("a", 512), ("late", 10))
    assert e.admit(e.plan(rows=3, step=5)) == [late], "the batch is still being formed"
    e.send(("a", 512), ("later", 10))
    assert e.ids(rows=3, step=7) == []


def test_a_batch_is_of_one_lane():
    e = engine(lanes=3, gate="offline", barrier=False)
    sent = send_lengths(e, [30, 10, 20, 31, 11, 21])
    batches = []
    for step in range(1, 20, 3):
        batches.append(e.admit(e.plan(rows=8, step=step, idle=True)))
        assert e.ids(rows=8, step=step + 1) == []
        end_all(e)
    assert [batch for batch in batches if batch] == [[sent[i], sent[i + 3]] for i in (1, 2, 0)]


def test_the_lane_of_the_oldest_is_next_when_it_is_past_the_bound():
    e = engine(lanes=2, gate="offline", max_wait_tokens=1000, barrier=False)
    longs = send_lengths(e, [900, 800])
    send_lengths(e, [10] * 8)
    assert not set(e.admit(e.plan(rows=2, step=1))) & set(longs)
    e.core._scheduled = 5000
    assert e.ids(rows=2, step=3) == [], "nobody joins: nobody is passed over"
    end_all(e)
    assert e.admit(e.plan(rows=8, step=5)) == longs


def test_a_batch_may_be_small_rather_than_wait():
    e = engine(lanes=2, gate="offline")
    (only,) = send_lengths(e, [10])
    assert e.admit(e.plan(rows=8, step=1, idle=True)) == [only]


def test_refill_waits_for_rows():
    e = Engine(gate="refill", refill_rows=3, aging=0.0)
    sent = [e.send((f"p{i}", 100)) for i in range(9)]
    assert e.admit(e.plan(rows=6, step=1)) == sent[:6]
    for ended, step in zip(sent[:3], (4, 6, 8), strict=True):
        assert e.ids(rows=6 - len(e.alive), step=step) == []
        e.finish(ended)
    assert e.admit(e.plan(rows=3, step=10)) == sent[6:]


def test_refill_never_waits_for_more_rows_than_there_are():
    assert Refill(100).begins(running=0, free=4)
    assert not Refill(100).begins(running=1, free=4)


def test_static_batches_through_the_simulated_engine():
    """Each lasts as many steps as its longest output."""
    outputs = [3, 90, 5, 80, 4, 70, 6, 60]
    served = simulated(outputs, bins=2, batch=4)
    assert served.batches == [(4, 6), (4, 90)]
    assert served.throughput == 8 / 96
    assert simulated(outputs, bins=1, batch=4).batches == [(4, 90), (4, 70)]
