"""Rows that sit out and are parked for no reason, so that every way there and back is taken."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from feather_sglang.core.interface import Decode, Limits, Resident
from feather_sglang.sglang.parking.rows import Rows
from feather_sglang.sglang.parking.start import attach
from tests.harness.scheduler import Harness


class AtRandom:
    """In every pass a random half of the rows decodes, parked ones come back for it; of the others, most are parked."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def __call__(self, limits: Limits, rows: Sequence[Resident]) -> Decode:
        draw = self._draw
        go = {row.id for row in rows if row.must_decode or draw.random() < 0.5}
        if rows and not go:
            go = {draw.choice(rows).id}
        out = [row for row in rows if row.id not in go and not row.parked and row.settled and row.private]
        return Decode(
            rows=[row.id for row in rows if row.id in go],
            park=[row.id for row in out if draw.random() < 0.8],
            resume=[row.id for row in rows if row.id in go and row.parked],
            shared=[],
        )


def park_at_random(harness: Harness, seed: int, host_tokens: int = 20_000) -> Rows:
    """Have the rows of a Scheduler sit out and park at random."""
    rows = park_under_pressure(harness, host_tokens)
    rows._choose, rows._always = AtRandom(seed), True
    park = rows.tails.park

    def check_and_park(req: Any) -> bool:
        # On the CPU a step is over when it is launched, so a wrong copy would be right by chance.
        in_flight = [other for batch, _ in harness.scheduler.result_queue for other in batch.reqs]
        assert not any(other is req for other in in_flight), "a row is parked whose step is in flight"
        return park(req)

    rows.tails.park = check_and_park  # type: ignore[method-assign]
    return rows


def park_under_pressure(harness: Harness, host_tokens: int = 20_000, most: int | None = None) -> Rows:
    """As ``--feather-park pressure``."""
    scheduler: Any = harness.scheduler
    return attach(scheduler, scheduler.feather, host_tokens=host_tokens, most=most)


def check_nothing_is_left(harness: Harness, free: int) -> None:
    """:param free: tokens of the KV pool when it was empty.
    :raises AssertionError: if there is a parked row, or a token that nobody has, on the device or the host.
    """
    rows: Rows = harness.scheduler.feather_rows
    state = rows.state()
    assert (state["parked"], state["host_tokens_free"]) == (0, state["host_tokens"])
    assert harness.flush()
    assert harness.scheduler.token_to_kv_pool_allocator.available_size() == free
    assert harness.scheduler.feather.failures == 0
