"""CPU time of this thread: other load on the machine interrupts it, and is not counted."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache


def microseconds(call: Callable[[], object]) -> float:
    """What one call takes, without reading the clock (0.6 us: 40% of what the shortest insertion takes)."""
    return max(_read(call) - _empty(), 0.0)


def _read(call: Callable[[], object]) -> float:
    began = time.thread_time_ns()
    call()
    return (time.thread_time_ns() - began) / 1000


@cache
def _empty() -> float:
    """Microseconds between two looks at the clock, with a call in between that does nothing."""
    return statistics.median(_read(lambda: None) for _ in range(10_000))


def canary() -> float:
    """Microseconds of a fixed loop: times of two runs compare as these do."""
    return statistics.median(microseconds(lambda: sum(i & 7 for i in range(100_000))) for _ in range(5))


@contextmanager
def no_collection() -> Iterator[None]:
    """Without pauses for garbage, as SGLang freezes its collector, too."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
