"""One Scheduler at a time, kept for as long as the tests want the same settings: starting one takes two seconds."""

from __future__ import annotations

import atexit
import gc
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from feather_sglang.sglang.parking.support import is_supported
from tests.harness.scheduler import Harness

FOLDER = Path(tempfile.mkdtemp(prefix="feather-tests-"))
"""For models; of this process alone, since others may write theirs while this one reads."""
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)

MODEL = FOLDER / "tiny-llama"

_open: tuple[dict[str, Any], Harness] | None = None


def start(**settings: Any) -> Harness:
    """A Scheduler of these settings (``Harness``) with nothing in it: the one at hand, or a new one."""
    global _open
    if settings.get("page_size", 1) != 1 and not is_supported():
        pytest.skip("before SGLang 0.5.22 a page on the CPU is one token")
    if _open is not None:
        if _open[0] == settings and "feather" in _open[1].scheduler.__dict__:
            _open[1].fresh()
            return _open[1]
        discard()
    harness = Harness(MODEL, **settings)
    _open = (settings, harness)
    return harness


def discard() -> None:
    """Take the Scheduler at hand down; the next test gets a new one."""
    global _open
    if _open is not None:
        _open[1].close()
        _open = None
        gc.collect()  # a Scheduler is full of cycles, and holds its pools
