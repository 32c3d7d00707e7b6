"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 600.0
"""Seconds after which something hangs, on a machine that is slow, busy, and has no byte code of SGLang yet."""


def until(condition: Callable[[], T], what: Callable[[], object], every: float = 0.1) -> T:
    """What ``condition`` answers, as soon as that is true.

    :param what: what to say if that does not come.
    :param every: seconds between two looks.
    :raises AssertionError: after ``PATIENCE``.
    """
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, what()
        time.sleep(every)
    return found
