"""SGLang's admission in the simulated engine: counts that can be checked by hand."""

from __future__ import annotations

import pytest

from feather_sglang.simulate.cost import Linear
from feather_sglang.simulate.engine import Machine
from feather_sglang.simulate.policies import make_engine
from feather_sglang.simulate.upstream import POLICIES
from feather_sglang.simulate.workload import Families, Job, Trace

SECOND = Linear(1.0, 0, 0, 0, prefill_base=1.0, prefill_token=0)
"""A second a pass, whatever is in it."""
PATHS = Families((640, 640, 640)).paths(64)


def run(policy, jobs, **machine):
    machine = {"rows": 8, "kv_tokens": 100_000} | machine
    engine = make_engine(policy, Trace(jobs), SECOND, Machine(**machine), keep_served=True)
    engine.passes = list(engine.run())
    return engine


def sibling(id, family=0, arrival=0.0, suffix=10, output=4):
    return Job(id, arrival, PATHS[family], 640 + suffix, output, family)


def alone(id, length, output=4, arrival=0.0):
    return Job(id, arrival, PATHS[0][:0], length, output)


def first_tokens(engine):
    return [served.job.id for served in sorted(engine.served, key=lambda served: (served.first_token, served.job.id))]


def prefills(engine):
    return [done.computed for done in engine.passes if done.kind == "prefill"]


def test_siblings_of_one_batch_compute_their_prefix_each():
    assert prefills(run("fcfs", [sibling(i) for i in range(3)])) == [3 * 650]


def test_in_batch_prefix_caching_puts_siblings_off_but_admits_them_all_the_same():
    """LPM moves them behind the others; the adder takes them in the same pass if there is room."""
    jobs = [sibling(0), sibling(1), sibling(2, family=1)]
    assert prefills(run("lpm", jobs)) == [3 * 650]
    engine = run("lpm", jobs, rows=2)
    assert first_tokens(engine) == [0, 2, 1]
    assert prefills(engine) == [1300, 10]


def test_the_first_that_does_not_fit_ends_admission_until_a_row_leaves():
    jobs = [alone(0, 400, 10), alone(1, 900, 50), alone(2, 10, 4)]
    engine = run("fcfs", jobs, kv_tokens=1000)
    assert first_tokens(engine) == [0, 1, 2]
    late = run(
        "hrrn", [alone(0, 400, 10), alone(1, 900, 50, arrival=0.5), alone(2, 10, 4, arrival=2.0)], kv_tokens=1000
    )
    (small,) = (served for served in late.served if served.job.id == 2)
    (first,) = (served for served in late.served if served.job.id == 0)
    assert small.first_token > first.finished, "it fits, and is first in order, but the batch is full"


def test_hrrn_serves_short_prompts_first():
    jobs = [alone(0, 500, 4), *(alone(i, 4000 if i == 1 else 200, 1, arrival=0.5) for i in range(1, 4))]
    assert first_tokens(run("hrrn", jobs, rows=1))[-1] == 1


def test_a_chunk_leaves_room_for_shorter_prompts_under_shortest_prefill_first():
    jobs = [alone(0, 2000), alone(1, 100, arrival=0.5), alone(2, 100, arrival=0.5)]
    fcfs = run("fcfs", jobs, prefill_tokens=500)
    assert prefills(fcfs) == [500] * 4 + [200]
    short = run("shortest-prefill-first", jobs, prefill_tokens=500)
    assert prefills(short) == [500] * 4 + [200]
    assert first_tokens(fcfs) == [0, 1, 2]
    assert first_tokens(short) == [1, 2, 0]


def test_routing_key_prefers_the_family_that_runs_most():
    running = [sibling(0, 2, output=30), sibling(1, 2, output=30), sibling(2, 1)]
    jobs = [*running, *(sibling(i, i % 3, arrival=0.5) for i in range(3, 9))]
    assert first_tokens(run("routing-key", jobs, rows=3))[3:] == [5, 8, 3, 6, 4, 7], "then by label"


@pytest.mark.parametrize("policy", ["feather", *POLICIES])
def test_first_tokens_are_timed_in_tokens_too(policy):
    engine = run(policy, [alone(0, 100, 10), alone(1, 50, 2, arrival=3.5), alone(2, 70, 1, arrival=100.0)])
    tokens = {served.job.id: served.ttft_tokens for served in engine.served}
    assert tokens == {0: 100, 1: 50, 2: 70}
    assert engine.scheduled == 220 + 9 + 1
    waiting = run(policy, [alone(0, 100, 5), alone(1, 50, 1, arrival=0.5)], rows=1)
    assert {served.job.id: served.ttft_tokens for served in waiting.served} == {0: 100, 1: 54}


def test_an_unknown_policy_is_named():
    with pytest.raises(ValueError, match="policy 'lifo': expected one of feather, fcfs, lpm"):
        run("lifo", [])
