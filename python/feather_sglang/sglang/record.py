"""``--feather-record FILE``: the core of a scheduler, recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from feather_sglang.core.interface import Core
from feather_sglang.core.recording import RecordedCore, Recorder
from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.core.settings import Settings


def recorder_of(scheduler: Any, path: Path) -> Recorder:
    """:param path: the recording."""
    return Recorder(
        path,
        time.monotonic,
        {
            "rows": scheduler.max_running_requests,
            "kv_tokens": scheduler.max_total_num_tokens,
            "prefill_tokens": scheduler.chunked_prefill_size or scheduler.max_prefill_tokens,
            "context": scheduler.model_config.context_len,
        },
    )


def cores_of(recorder: Recorder | None) -> Callable[[Settings], Core]:
    """What makes the cores of a scheduler; None: they are not recorded."""
    return SchedulerCore if recorder is None else partial(RecordedCore, recorder=recorder)
