"""The states that a request of a Scheduler can be in, and who is in which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STATES = ("waiting", "retracted", "chunked", "computing", "decoding", "parked", "finishing")


def those(scheduler: Any, state: str) -> list[Any]:
    """The requests in a state, in a fixed order."""
    return _FIND[state](scheduler)


def running_of(scheduler: Any) -> list[Any]:
    """Every request that the engine runs, each once."""
    batches = [batch for batch in (scheduler.running_batch, scheduler.last_batch) if batch is not None]
    rows = {id(req): req for batch in batches for req in batch.reqs}
    if scheduler.chunked_req is not None:
        rows[id(scheduler.chunked_req)] = scheduler.chunked_req
    return list(rows.values())


def parked_of(scheduler: Any) -> list[Any]:
    """Those whose KV is on the host; of one that was retracted meanwhile it is void."""
    rows = scheduler.__dict__.get("feather_rows")
    if rows is None:
        return []
    rows.tails.sweep()
    return list(rows.tails._parked)


def _decoding(scheduler: Any) -> list[Any]:
    computing = _computing(scheduler)
    return [req for req in running_of(scheduler) if req not in computing and not req.finished()]


def _computing(scheduler: Any) -> list[Any]:
    return [tracked.req for tracked in scheduler.feather.book.computing.values()]


def _finishing(scheduler: Any) -> list[Any]:
    return [req for req in running_of(scheduler) if req.finished() or req.to_finish is not None]


_FIND: dict[str, Callable[[Any], list[Any]]] = {
    "waiting": lambda scheduler: list(scheduler.waiting_queue),
    "retracted": lambda scheduler: [req for req in scheduler.waiting_queue if req.retraction_count],
    "chunked": lambda scheduler: [] if scheduler.chunked_req is None else [scheduler.chunked_req],
    "computing": _computing,
    "decoding": _decoding,
    "parked": parked_of,
    "finishing": _finishing,
}
