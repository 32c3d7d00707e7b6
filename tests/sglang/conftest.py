"""Every test here drives a real Scheduler, in this process; one is shared as long as its settings are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sglang.srt.plugins import load_plugins

from tests.harness import pool
from tests.harness.scheduler import Harness


@pytest.fixture
def start() -> Callable[..., Harness]:
    """Gives a Scheduler of the settings asked for, with nothing in it."""
    return pool.start


@pytest.fixture
def start_alone() -> Iterator[Callable[..., Harness]]:
    """The same, for a test that leaves its Scheduler in a state that others should not get."""
    pool.discard()
    yield pool.start
    pool.discard()


@pytest.fixture(scope="session", autouse=True)
def _plugins() -> Iterator[Any]:
    load_plugins()
    yield
    pool.discard()
