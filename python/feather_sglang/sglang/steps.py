"""How long forward steps take, as the leader rank sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from feather_sglang.core.interface import Step

LONGEST_DECODE = 2.0
"""Seconds from which a decode step is no measurement: SGLang's own statistics (``STEP_MAX_US``) draw the line there."""

_IN_FLIGHT = 64
"""Launched steps of which no result was seen; more were never run."""


class Steps:
    """Times steps from result to result: what requests wait for, scheduling and overlap included.

    Of one scheduler, called for each of its launches and results, in their order. Where a time means nothing (the first
    step, one that an engine's pause fell into, an outlier) the step is left out.

    :param clock: seconds, that of ``ScheduleBatch.launch_ts``.
    :param synchronous: a step is over when its launch returns, as on a CPU: then they are timed from launch to launch,
        since the time from result to result is that of the step after, which is launched before a result is looked at.
        (Where no step follows before the result, what lies between that and the next launch is no step's.)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, synchronous: bool = False) -> None:
        self._clock = clock
        self._synchronous = synchronous
        self._ended: float | None = None
        """When the step before ended; None: not known."""
        self._launched: dict[int, tuple[float, int]] = {}
        """By forward pass: when, and the KV tokens that its rows share, counted for each row but the first."""

    def launches(self, iteration: int, shared: int) -> None:
        """A step is about to be launched.

        :param iteration: its number among the forward passes of the scheduler.
        :param shared: KV tokens of the running rows that would be counted twice.
        """
        if len(self._launched) >= _IN_FLIGHT:
            self._launched.clear()
        self._launched[iteration] = (self._clock(), shared)

    def interrupted(self) -> None:
        """The time to the next result is not that of a step."""
        self._ended = None
        if self._synchronous:
            self._launched.clear()

    def ended(self, batch: Any, result: Any) -> Step | None:
        """The result of ``batch`` was processed; None: its time means nothing."""
        now = self._clock()
        before, self._ended = self._ended, now
        began, shared = self._launched.pop(batch.forward_iter, (None, 0))
        kind = _kind_of(batch.forward_mode)
        if self._synchronous:
            before = began
            now, _ = self._launched.get(batch.forward_iter + 1, (now, 0))
        elif before is not None and batch.after_idle_gap:
            before = max(before, batch.launch_ts)
        if kind is None or before is None:
            return None
        seconds = now - before
        if seconds <= 0 or (kind == "decode" and seconds >= LONGEST_DECODE):
            return None
        rows, lengths = len(batch.reqs), batch.seq_lens_cpu
        total, longest = (int(lengths.sum()), int(lengths.max())) if lengths is not None and len(lengths) else (0, 0)
        return Step(
            seq=batch.forward_iter,
            kind=kind,
            seconds=seconds,
            tokens=int(result.get_num_generated_tokens(rows)) if kind == "decode" else rows,
            requests=rows,
            total_kv=total,
            distinct_kv=total if kind == "prefill" else max(total - shared, 0),
            longest_kv=longest,
            computed=0 if kind == "decode" else int(batch.extend_num_tokens) - len(batch.decoding_reqs or ()),
        )


def _kind_of(mode: Any) -> str | None:
    if mode.is_mixed():
        return "mixed"
    if mode.is_decode() or mode.is_target_verify():
        return "decode"
    return "prefill" if mode.is_extend() else None
