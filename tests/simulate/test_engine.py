"""The simulated engine: counts that can be checked by hand, through the real core and index."""

from __future__ import annotations

import pytest

from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.core.settings import Settings
from feather_sglang.simulate.cost import CPU, Batch, Drift, Linear
from feather_sglang.simulate.engine import Engine, Machine
from feather_sglang.simulate.workload import Backlog, Families, Job, Trace

FREE = Linear(1.0, 0, 0, 0, prefill_base=1.0, prefill_token=0)
"""A second a pass, whatever is in it."""


def engine(jobs, machine=None, cost=FREE, gate="never", **options):
    machine = machine or Machine(rows=8, kv_tokens=100_000)
    core = SchedulerCore(Settings(gate=gate, chunk_size=machine.level_tokens, kv_capacity=machine.kv_tokens))
    source = jobs if hasattr(jobs, "due") else Trace(jobs)
    return Engine(core, source, cost, machine, keep_served=True, **options)


def family(n, prefix=640, suffix=10, output=4, arrival=0.0):
    path = Families((prefix,)).paths(64)[0]
    return [Job(i, arrival, path, prefix + suffix, output) for i in range(n)]


def test_one_request():
    passes = list((e := engine(family(1))).run())
    assert [p.kind for p in passes if p.kind != "idle"] == ["prefill", "decode", "decode", "decode"]
    assert passes[0].computed == 650
    (served,) = e.served
    assert (served.first_token, served.finished, served.computed) == (1.0, 4.0, 650)
    assert (e.pool.total_kv, e.pool.distinct_kv, e.pool.reserved, e.pool.private) == (0, 0, 0, 0)


def test_siblings_wait_for_the_leader_and_hit():
    passes = list((e := engine(family(4))).run())
    computed = [p.computed for p in passes if p.kind == "prefill"]
    assert computed == [650, 30], "the prefix once, and then three suffixes"
    assert sorted(served.computed for served in e.served) == [10, 10, 10, 650]
    e.core.check_integrity()


def test_shared_kv_is_counted_once():
    e = engine(family(4, output=40))
    batch = next(p for p in e.run() if p.kind == "decode" and p.batch.rows == 4).batch
    assert batch.total_kv - batch.distinct_kv == 3 * 640
    assert batch.shared_kv == batch.reuse_distance * 4 * 640 / batch.total_kv == 640
    assert batch.longest_kv > 650


def test_the_core_counts_as_the_engine_does():
    machine = Machine(rows=16, kv_tokens=60_000)
    families = Families((1024, 640, 0, 2048), common=256)
    e = engine(Backlog(families.jobs(3, 64), 40), machine, CPU)
    for n, _ in enumerate(e.run()):
        view = e.core.view()
        assert len(view.order) == e.running
        known = e.pool.total_kv + e.ended_kv
        assert abs(view.total_kv - known) <= e.running * 20, "but for what was generated since it was told"
        assert e.pool.distinct_kv + e.pool.reserved <= machine.kv_tokens
        if n % 50 == 0:
            e.core.check_integrity()
        if n == 400:
            break


def test_long_prompts_are_chunked():
    e = engine(family(2, prefix=1280, suffix=0), Machine(rows=8, kv_tokens=100_000, prefill_tokens=500))
    assert [p.computed for p in e.run() if p.kind == "prefill"] == [500, 500, 280, 1]


def test_too_little_kv_makes_requests_wait():
    e = engine(family(6, prefix=0, suffix=400, output=100), Machine(rows=8, kv_tokens=1100))
    assert max(p.batch.rows for p in e.run()) == 2
    assert e.finished == 6


def test_a_request_that_can_never_fit_is_refused():
    with pytest.raises(ValueError, match="needs 1300 KV tokens; expected at most 1000"):
        list(engine(family(1, prefix=0, suffix=300, output=1000), Machine(rows=8, kv_tokens=1000)).run())


def test_the_cache_forgets_what_it_has_no_room_for():
    prefixes = (6400, 6400)
    machine = Machine(rows=1, kv_tokens=8000)
    paths = Families(prefixes).paths(64)
    jobs = [Job(i, 100.0 * i, paths[i % 2], 6410, 1) for i in range(3)]
    e = engine(jobs, machine)
    list(e.run())
    room = (8000 - 6411) // 64 * 64
    assert [served.computed for served in e.served] == [6410, 6410, 6410 - room], "the first levels stay longest"


def test_arrivals_are_waited_for():
    e = engine([*family(1, arrival=5.0)])
    list(e.run())
    assert e.served[0].arrived == 5.0
    assert e.served[0].first_token == 6.0


def test_warm_prefixes_are_hit():
    families = Families((640, 640))
    e = engine(family(1))
    e.warm([Job(1000, 0.0, families.paths(64)[0], 650, 1)])
    assert e.now == 0.0
    assert [p.computed for p in e.run() if p.kind == "prefill"] == [10]


def test_the_same_seed_gives_the_same_run():
    def run():
        e = engine(Backlog(Families((1024,) * 4).jobs(7, 64), 20), cost=CPU, gate="q")
        return [(p.kind, p.batch, p.admitted) for p, _ in zip(e.run(), range(200), strict=False)]

    assert run() == run()


def test_drift_changes_the_cost():
    batch = Batch(1, 1, 1, 0, 1, 0.0)
    cost = Drift(FREE, Linear(2.0, 0, 0, 0, 3.0, 0), 2)
    assert [cost.decode(batch) for _ in range(4)] == [1, 1, 2, 2]
    assert cost.prefill(1) == 3


def test_the_knee_is_where_the_cache_ends():
    cost = Linear(1.0, 0, 0, 0, 0, 0, reread=0.5, cache_tokens=100, by_family=False)
    assert cost.decode(Batch(2, 20, 10, 10, 10, 99.0)) == 1
    assert cost.decode(Batch(2, 20, 10, 10, 10, 101.0)) == 6
    by_family = Linear(1.0, 0, 0, 0, 0, 0, reread=0.5, cache_tokens=100)
    assert by_family.decode(Batch(2, 20, 10, 10, 10, 101.0)) == 1
