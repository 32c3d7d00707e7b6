"""Lanes of predicted output length: who is in which, which comes next, and that one lane is as none."""

from __future__ import annotations

import random
from array import array

import pytest

from feather_sglang.core.interface import Limits, Request, Row
from feather_sglang.core.recording import RecordedCore, Recorder
from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.core.settings import Settings
from feather_sglang.simulate.cost import Linear
from feather_sglang.simulate.engine import Engine as Simulated
from feather_sglang.simulate.engine import Machine
from feather_sglang.simulate.replay import replay
from feather_sglang.simulate.workload import Families, Trace
from tests.core.test_rules import Engine, done

ORDERS = ("missing", "held")


def engine(lanes=2, length="request", **settings):
    return Engine(lanes=lanes, length=length, **({"aging": 0.0} | settings))


def lane_of(core, id):
    return core.lanes._alive[id].lane


def send_lengths(engine, lengths, **fields):
    return [engine.send((f"p{i}-{engine.sent}", 100), predicted_new=n, **fields) for i, n in enumerate(lengths)]


def test_the_short_lane_goes_first_in_the_order_of_arrival():
    e = engine()
    lengths = [900, 10, 700, 20, 800, 15]
    sent = send_lengths(e, lengths)
    assert e.ids() == [sent[i] for i in (1, 3, 5, 0, 2, 4)]


def test_as_many_in_each_lane():
    e = engine(lanes=4)
    draw = random.Random(1)
    send_lengths(e, [draw.randrange(1, 1 << 20) for _ in range(256)])
    e.plan()
    assert e.core.state()["lane_waiting"] == [64] * 4
    assert len(e.core.state()["lane_bounds"]) == 3


@pytest.mark.parametrize("short", [3, 7])
def test_lanes_part_between_lengths(short):
    """Not where a quantile falls into many that are equal, as predictions of families are."""
    e = engine()
    sent = send_lengths(e, [900] * (10 - short) + [10] * short)
    assert e.ids() == sent[10 - short :] + sent[: 10 - short]


def test_equal_lengths_share_a_lane():
    e = engine(lanes=8)
    sent = send_lengths(e, [50] * 30)
    assert e.ids() == sent
    assert sorted(e.core.state()["lane_waiting"]) == [0] * 7 + [30]


def test_the_order_holds_within_a_lane():
    """A family whose prefix is held comes first, of those as short; a longer member waits for its lane."""
    e = engine(lanes=2)
    leader = e.send(("a", 512), ("x", 10), predicted_new=5)
    e.admit(e.plan())
    short = e.send(("b", 512), predicted_new=5)
    another = e.send(("c", 600), predicted_new=400)
    long = e.send(("a", 512), ("y", 10), predicted_new=500)
    sibling = e.send(("a", 512), ("z", 10), predicted_new=5)
    e.plan([done(leader, 512)])
    assert [lane_of(e.core, id) for id in (short, another, long, sibling)] == [0, 1, 1, 0]
    assert e.ids() == [sibling, short, long, another]


def test_lanes_share_one_working_set():
    """Who waits for a prefix that one of another lane is computing does so, and finds it."""
    e = engine(lanes=2)
    leader = e.send(("a", 512), ("x", 10), predicted_new=5)
    follower = e.send(("a", 512), ("y", 10), predicted_new=500)
    send_lengths(e, [5, 500], leads=False)
    plan = e.plan(rows=1)
    assert [c.id for c in plan.order] == [leader]
    e.admit(plan)
    plan = e.plan(rows=2)
    assert (plan.held, follower in [c.id for c in plan.order]) == (1, False)
    (named,) = [c for c in e.plan([done(leader, 512)]).order if c.id == follower]
    assert named.uncomputed == 10


@pytest.mark.parametrize("order", ORDERS)
def test_the_bound_on_waiting_holds_across_lanes(order):
    e = engine(order=order, max_wait_tokens=1000)
    (long,) = send_lengths(e, [900])
    shorts = send_lengths(e, [10] * 5)
    assert e.ids(rows=2) == shorts[:2]
    e.core._scheduled = 1001
    late = send_lengths(e, [10] * 5)
    ids = e.ids()
    assert ids[0] == long
    assert set(late) <= set(ids)


def test_a_length_that_is_not_told_is_the_median():
    e = engine()
    lengths = [100] * 3 + [1] * 2 + [1000] * 2
    for id in send_lengths(e, lengths):
        e.core.settle({id: 0}, {})
        e.alive.append(id)
        e.finish(id, lengths[id])
    e.send(("unknown", 100))
    send_lengths(e, [10, 20, 300, 400])
    e.plan()
    expected = e.core.lanes._alive
    assert [each.predicted for each in expected.values()] == [100, 10, 20, 300, 400]


def test_max_tokens():
    e = engine(length="max-tokens")
    sent = [e.send((f"p{i}", 100), max_new=n, predicted_new=1) for i, n in enumerate([4000, 16, 4000, 32])]
    assert e.ids() == [sent[1], sent[3], sent[0], sent[2]]


def serve(e, family, output):
    id = e.send((family, 256), (f"own{e.sent}", 10))
    plan = e.plan()
    e.admit(plan, reused=plan.order[0].add_total - plan.order[0].uncomputed)
    e.plan([done(id, 256)])
    e.core.begin([], e.alive, {id: output})
    e.alive.remove(id)
    return id


def test_families_tell_the_length():
    e = engine(length="family", barrier=False)
    for _ in range(5):
        serve(e, "short", 10)
        serve(e, "long", 900)
    sent = [e.send((name, 256), (f"own{e.sent}", 10)) for name in ("long", "short", "long", "short")]
    e.plan()
    assert [lane_of(e.core, id) for id in sent] == [1, 0, 1, 0]
    assert e.core.state()["length_error"] == 0, "all of a family are alike"


def test_what_waits_is_put_into_its_lane_when_its_family_is_known():
    """A cold burst: nothing is known, and all are in one lane, until the first ones of each family end."""
    e = engine(length="family", barrier=False)
    sent = [e.send(("long" if i % 2 else "short", 256), (f"own{i}", 10)) for i in range(60)]
    ran = e.admit(e.plan(rows=12))
    assert ran == sent[:12]
    for id in ran:
        e.core.begin([done(id, 256)], e.alive, {id: 900 if id % 2 else 10})
        e.alive.remove(id)
    assert e.ids(rows=24) == [id for id in sent[12:] if id % 2 == 0]


def test_what_was_learned_outlives_the_index():
    e = engine(length="family", barrier=False)
    for _ in range(5):
        serve(e, "short", 10)
        serve(e, "long", 900)
    before = e.core
    e.core = SchedulerCore(before.settings)
    sent = [e.send((name, 256), (f"own{e.sent}", 10)) for name in ("long", "short", "long", "short")]
    e.core.begin([], e.alive)
    e.core.succeed(before)
    assert e.ids() == [sent[i] for i in (1, 3, 0, 2)]


def run(jobs, order, expected=lambda job: None, **settings):
    """The decisions of a core on a simulated engine."""
    machine = Machine(rows=12, kv_tokens=40_000, prefill_tokens=2048)
    core = SchedulerCore(
        Settings(order=order, chunk_size=64, kv_capacity=machine.kv_tokens, max_wait_tokens=40_000, **settings)
    )
    cost = Linear(0.01, 1e-4, 1e-7, 1e-7, 0.01, 1e-5)
    engine = Simulated(core, Trace(jobs), cost, machine, expected=expected, keep_served=True)
    for n, _ in enumerate(engine.run()):
        if n % 16 == 0:
            core.check_integrity()
    return core.decisions, engine


def mixed(n=300, seed=3):
    families = Families((1024, 640, 0, 2048), common=256, output=30.0)
    jobs = families.jobs(seed, 64, rate=30.0)
    return [next(jobs) for _ in range(n)]


@pytest.mark.parametrize("order", ORDERS)
def test_all_in_one_of_many_lanes_is_as_without(order):
    plain, _ = run(mixed(), order)
    lanes, engine = run(mixed(), order, lambda job: 100, lanes=7, length="request")
    assert lanes == plain
    assert set(engine.core.state()["lane_bounds"]) == {100, 101}
    assert run(mixed(), order, lambda job: job.output, lanes=2, length="request")[0] != plain


@pytest.mark.parametrize("length", ["request", "family"])
def test_ranks_agree(length):
    """Nothing depends on the key of the hashes, which differs between ranks until the leader says its own."""
    cores = [
        run(mixed(), "missing", lambda job: job.output, lanes=3, length=length, hash_key=key)
        for key in ((1, 2), (3, 4))
    ]
    assert cores[0][0] == cores[1][0]
    assert cores[0][1].core.state()["lane_bounds"] == cores[1][1].core.state()["lane_bounds"]


@pytest.mark.parametrize("length", ["request", "family"])
def test_a_recording_has_what_lanes_depend_on(tmp_path, length):
    path = tmp_path / "recording"
    machine = {"rows": 8, "kv_tokens": 10_000, "prefill_tokens": 512, "context": 4096}
    settings = Settings(chunk_size=4, lanes=3, length=length, gate="offline", barrier_min=8)
    core = RecordedCore(settings, Recorder(path, lambda: 0.0, machine))
    draw, alive = random.Random(1), {}
    for id in range(200):
        family = draw.randrange(4)
        tokens = array("q", [family] * 16 + [100 + id] * 3)
        core.enqueue(Request(id, 19, (core.scheduled_tokens, id), tokens=(tokens,), predicted_new=draw.randrange(50)))
        ended = {row: 10 * end + 1 for row, end in alive.items() if draw.random() < 0.3}
        core.begin([done(row, 19) for row in alive], list(alive), ended)
        for row in ended:
            del alive[row]
        plan = core.plan_admissions(Limits(1000, 8 - len(alive), 512, step=id, idle=not alive))
        core.settle({c.id: 0 for c in plan.order}, {})
        alive |= {c.id: draw.randrange(5) + c.id % 4 for c in plan.order}
    core._recorder.close()
    found = replay(path)
    assert (found.differences, found.admitted) == ([], core.decisions[0])
    assert core.decisions[0] > 50


def test_a_row_that_the_engine_lost_is_forgotten():
    e = engine()
    sent = send_lengths(e, [5, 50])
    e.admit(e.plan())
    e.core.begin([Row(sent[1], done(0, 0).phase, 0)], [sent[1]])
    e.alive = [sent[1]]
    for _ in range(3):
        send_lengths(e, [1, 2, 3, 4])
        e.plan()
    assert sent[0] not in e.core.lanes._alive
