"""What the periodic batch lines of SGLang's log gain: requests held back now, and stops since the start.

A filter on SGLang's logger: it costs nothing but when such a line is written.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any

LINES = ("Prefill batch", "Decode batch")


class BatchLine(logging.Filter):
    """Adds the figures of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        super().__init__()
        self._scheduler = weakref.ref(scheduler)  # SGLang's logger outlives it

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str) and record.msg.startswith(LINES):
            adapter = getattr(self._scheduler(), "feather", None)
            if adapter is not None and adapter.fallen is None:
                held = adapter.core_state().get("held", 0)
                record.msg += f", #held: {held}, #stops: {adapter.watch.stops['gate']}"
        return True


def extend(scheduler: Any) -> None:
    """Have the lines of this scheduler, the only one of its process, say more."""
    log = logging.getLogger(type(scheduler.metrics_reporter).__module__)
    for old in [f for f in log.filters if isinstance(f, BatchLine)]:
        log.removeFilter(old)
    log.addFilter(BatchLine(scheduler))
