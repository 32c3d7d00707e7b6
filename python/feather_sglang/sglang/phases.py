"""What benches measure inside a server, with any policy and any attention: CPU seconds of forward passes, prefill and
decode apart, and the time that SGLang takes to order its queue.

``FEATHER_PHASES=1`` in a server's environment counts them; without it, nothing is hooked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

VARIABLE = "FEATHER_PHASES"


def run_batch(original: Callable[..., Any], scheduler: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``Scheduler.run_batch``. On the CPU the pass is over when it returns."""
    batch = args[0] if args else named["batch"]
    phase = "decode" if batch.forward_mode.is_decode() else "prefill"
    rows = len(batch.reqs)
    began = time.process_time()
    try:
        return original(scheduler, *args, **named)
    finally:
        count = _counts(scheduler)[phase]
        count["passes"] += 1
        count["rows"] += rows
        count["cpu_s"] += time.process_time() - began


def order_queue(original: Callable[..., Any], policy: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``SchedulePolicy.calc_priority``."""
    began = time.perf_counter()
    try:
        return original(policy, *args, **named)
    finally:
        policy.feather_order_seconds = policy.__dict__.get("feather_order_seconds", 0.0) + time.perf_counter() - began


def internal_state(result: Any, scheduler: Any, *args: Any, **named: Any) -> None:
    """AFTER ``Scheduler.get_internal_state``: ``feather_phases`` and ``feather_order_seconds`` of the state."""
    result.internal_state["feather_phases"] = _counts(scheduler)
    result.internal_state["feather_order_seconds"] = scheduler.policy.__dict__.get("feather_order_seconds", 0.0)


def _counts(scheduler: Any) -> dict[str, dict[str, float]]:
    counts: dict[str, dict[str, float]] | None = scheduler.__dict__.get("feather_phases")
    if counts is None:
        counts = {phase: {"passes": 0, "rows": 0, "cpu_s": 0.0} for phase in ("prefill", "decode")}
        scheduler.feather_phases = counts
    return counts
