"""What a pass costs, counted: crossings into the index, and the plugin's Python calls. Its time: ``feather bench``."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

import feather_sglang
from tests.harness.prompts import Tokens, interleaved

PACKAGE = str(Path(feather_sglang.__file__).parent)
HARNESS = f"{PACKAGE}/bench/"


class Crossings:
    """An index that counts the calls of its methods."""

    def __init__(self, index):
        self._index = index
        self.calls = Counter()

    def __getattr__(self, name):
        method = getattr(self._index, name)

        def counted(*args, **named):
            self.calls[name] += 1
            return method(*args, **named)

        return counted


@contextmanager
def counted_calls():
    """Calls of the plugin's Python functions, by name."""
    calls = Counter()

    def note(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE) and not file.startswith(HARNESS):
            calls[frame.f_code.co_name] += 1

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.fixture
def harness(start):
    """A full batch, and a queue of siblings of its rows."""
    harness = start(max_running_requests=24)
    harness.reconfigure("feather", order="held")  # of which it is plain who is next: nobody waits for a prefix
    return harness


def fill(harness, rows, waiting=0):
    """That many running, and that many that wait for a row."""
    prompts = interleaved(Tokens().families(4, (rows + waiting) // 4, 256, 16))
    harness.send_all(prompts, new=200)
    for _ in range(6):
        harness.step()
    assert len(harness.scheduler.running_batch.reqs) == rows
    assert len(harness.queue) == waiting


def end(harness, rows):
    """Rows reach their length with the next result; the pass after this finds them gone."""
    harness.step()  # what was admitted last decodes
    for req in harness.scheduler.running_batch.reqs[:rows]:
        req.sampling_params.max_new_tokens = 1
    harness.step()


def test_a_pass_that_admits_crosses_three_times_however_many_it_admits(harness):
    fill(harness, 24, 60)
    core = harness.scheduler.feather.core
    index, core._index = core._index, Crossings(core._index)
    try:
        for admitted in (1, 12):
            end(harness, admitted)
            core._index.calls.clear()
            before = len(harness.log.admitted)
            harness.step()
            assert len(harness.log.admitted) - before == admitted
            assert core._index.calls == {"follow": 1, "plan": 1, "settle": 1}
    finally:
        core._index = index


@pytest.mark.slow
def test_a_pass_in_which_nothing_changed_does_not_look_at_its_rows(harness):
    counts = []
    for rows in (8, 24):
        harness.fresh()
        fill(harness, rows)
        with counted_calls() as calls:
            harness.step()
        assert calls["reconcile"] == 1
        counts.append(calls)
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_an_admission_and_a_departure_cost_few_calls(harness):
    fill(harness, 24, 60)
    totals = []
    for admitted in (1, 12):
        end(harness, admitted)
        with counted_calls() as calls:
            harness.step()
        assert calls["prefix_of"] == 2 * admitted
        totals.append(calls.total())
    assert totals[1] - totals[0] <= 11 * 10


@pytest.mark.slow
def test_rows_that_stay_cost_an_admission_nothing(harness):
    counts = []
    for rows in (8, 24):
        harness.fresh()
        fill(harness, rows)
        end(harness, 4)
        harness.send_all(interleaved(Tokens().families(4, 1, 256, 16)), new=200)
        with counted_calls() as calls:
            harness.step()
        assert calls["row_of"] >= 4
        assert calls["admit"] > 4
        counts.append(calls)
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_the_length_of_the_queue_costs_an_admission_nothing(harness):
    counts = []
    for waiting in (20, 200):
        harness.fresh()
        fill(harness, 24, waiting)
        end(harness, 4)
        with counted_calls() as calls:
            harness.step()
        assert calls["admit"] > 0
        counts.append(calls)
    assert counts[0] == counts[1]
