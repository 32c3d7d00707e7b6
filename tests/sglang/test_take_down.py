"""Schedulers in one process, one after the other: nothing keeps one, and its KV pool, once it is taken down."""

from __future__ import annotations

import gc
import weakref

import pytest

from tests.harness import pool


@pytest.mark.slow
def test_a_scheduler_that_is_taken_down_is_gone():
    harness = pool.start(max_total_tokens=5_000)
    harness.send([1, 2, 3])
    harness.run()
    scheduler = weakref.ref(harness.scheduler)
    del harness
    pool.discard()
    gc.collect()
    assert scheduler() is None
