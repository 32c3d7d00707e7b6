"""What must hold after every pass, and at the end of an episode."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.harness.ends import Ends
from tests.harness.mirror import check_mirror
from tests.harness.scheduler import Harness
from tests.soak.states import parked_of, running_of

STILL = 3
"""Passes without a batch in which an idle engine may leave somebody waiting."""


class Baseline:
    """What a Scheduler had when there was nothing in it."""

    def __init__(self, harness: Harness) -> None:
        self._taken = self._free(harness)

    def check(self, harness: Harness) -> None:
        """:raises AssertionError: if something is left of what was there meanwhile."""
        scheduler = harness.scheduler
        adapter, state = scheduler.feather, harness.state()["feather"]
        gauges = ("waiting", "running", "held", "tip_chunks", "total_kv", "distinct_kv")
        assert [state[name] for name in gauges] == [0] * len(gauges), {name: state[name] for name in gauges}
        assert harness.flush()
        assert harness.state()["feather"]["nodes"] == 1, "the index did not return to its baseline"
        assert self._free(harness) == self._taken, "KV, rows or host memory leaked"
        book = adapter.book
        assert not any((book.waiting, book.running, book.computing, book.express, book.ids))
        assert len(book._free) == book._issued, "ids were lost"
        assert parked_of(scheduler) == []
        check_mirror(harness)

    @staticmethod
    def _free(harness: Harness) -> tuple[int, ...]:
        scheduler = harness.scheduler
        rows = scheduler.__dict__.get("feather_rows")
        return (
            scheduler.token_to_kv_pool_allocator.available_size(),
            scheduler.req_to_token_pool.available_size(),
            0 if rows is None else rows.tails.slab.ranges.free,
        )


def check_states(harness: Harness, ends: Ends, sent: Collection[str], strangers: Collection[str]) -> None:
    """Every request that was sent is in one place, or ended, once; and the engine's memory adds up.

    :param strangers: see ``check_mirror``.
    :raises AssertionError: where that is not so.
    """
    scheduler = harness.scheduler
    queue, running = [req.rid for req in scheduler.waiting_queue], running_of(scheduler)
    for batch in (scheduler.running_batch, scheduler.last_batch):
        if batch is not None:
            assert len(set(map(id, batch.reqs))) == len(batch.reqs), "a request is twice in a batch"
    rows = [req.rid for req in running if not req.finished()]
    everywhere = sorted(queue + rows)
    assert len(set(everywhere)) == len(everywhere), f"in two states: {_twice(everywhere)}"
    left = set(sent) - ends.count.keys()
    assert left == set(everywhere), f"lost: {sorted(left - set(everywhere))}, undead: {sorted(set(everywhere) - left)}"
    assert all(count == 1 for count in ends.count.values()), f"ended twice: {_twice(list(ends.count.elements()))}"
    assert all(any(req is row for row in running) for req in parked_of(scheduler)), "parked, and not in the batch"
    scheduler.invariant_checker.self_check_during_busy()
    check_mirror(harness, strangers)


def _twice(rids: list[str]) -> list[Any]:
    return sorted({rid for rid in rids if rids.count(rid) > 1})
