"""One policy on one trace, and how much faster a trace must arrive for a queue never to empty."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from feather_sglang.simulate.engine import Served
from feather_sglang.simulate.policies import make_engine
from feather_sglang.simulate.profiles import Profile
from feather_sglang.simulate.traces import TraceError, TraceFile
from feather_sglang.simulate.workload import Job, Trace

BASELINE = "fcfs"
SATURATED_FROM = 0.05
"""Share of the arrivals after which the queue of a saturated engine may not empty."""
FASTEST = 1 << 20
PROGRESS = 4096
"""Passes between two reports of progress."""


class Outcome(NamedTuple):
    """What a policy made of a trace."""

    policy: str
    served: list[Served]
    seconds: float
    """Simulated, until the last request was finished."""
    prefill_steps: int
    decode_steps: int
    passes: int
    """Scheduling decisions: passes of the engine, idle ones included."""
    prefill_tokens: int
    decode_rows: int
    """Sum over the decode steps of their rows."""
    total_kv: int
    distinct_kv: int
    """The same of their KV tokens: shared ones for each row, and once."""
    wall_seconds: float


def run(
    policy: str,
    jobs: Sequence[Job],
    profile: Profile,
    level_tokens: int,
    told: Callable[[int], None] = lambda finished: None,
    **options: Any,
) -> Outcome:
    """Serve all jobs.

    :param told: is told now and then how many are finished.
    :param options: see ``policies.make_engine``.
    """
    began = time.perf_counter()
    engine = make_engine(policy, Trace(jobs), profile.cost, profile.machine(level_tokens), keep_served=True, **options)
    prefills = passes = computed = rows = total = distinct = 0
    for done in engine.run():
        passes += 1
        if done.kind == "decode":
            batch = done.batch
            rows += batch.rows
            total += batch.total_kv
            distinct += batch.distinct_kv
        elif done.kind == "prefill":
            prefills += 1
            computed += done.computed
        if passes % PROGRESS == 0:
            told(engine.finished)
    wall = time.perf_counter() - began
    return Outcome(
        policy,
        engine.served,
        engine.now,
        prefills,
        engine.decode_steps,
        passes,
        computed,
        rows,
        total,
        distinct,
        wall,
    )


def saturating_speed(trace: TraceFile, profile: Profile) -> int:
    """The smallest power of two at which the queue of first come, first served is non-empty after every pass from the
    arrival of the request at 5% of the trace to that of the last.

    :raises TraceError: if there is none.
    """
    speed = 1
    while speed <= FASTEST:
        if _saturates(trace.at_speed(speed), profile, trace.level_tokens):
            return speed
        speed *= 2
    raise TraceError(
        f"{trace.path}: the queue empties before the last arrival at every speed; expected more requests than "
        f"{profile.name} has room for at once ({profile.rows} rows). Give a number for --speed."
    )


def _saturates(jobs: Sequence[Job], profile: Profile, level_tokens: int) -> bool:
    first, last = jobs[int(SATURATED_FROM * len(jobs))].arrival, jobs[-1].arrival
    engine = make_engine(BASELINE, Trace(jobs), profile.cost, profile.machine(level_tokens))
    for _ in engine.run():
        if engine.now >= last:
            return engine.waiting > 0
        if engine.now >= first and not engine.waiting:
            return False
    return False
