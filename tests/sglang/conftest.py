"""Every test here drives a real Scheduler, in this process; one is shared as long as its settings are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sglang.srt.plugins import load_plugins
from sglang.srt.server_args import prepare_server_args

from feather_sglang.bench.tiny_llama import write_model
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


@pytest.fixture
def launch(tmp_path, capsys):
    """Read a command line as the launcher does; the arguments, or the one line it ends with."""
    model = write_model(tmp_path / "model")

    def launch(*argv):
        try:
            return prepare_server_args(["--model-path", str(model), "--schedule-policy", "feather", *argv])
        except SystemExit as end:
            status = end.code
        lines = capsys.readouterr().err.strip().splitlines()
        assert (status, len(lines)) == (2, 1), lines
        return lines[0]

    return launch
