"""Finished requests, with the prompts and pictures that were sent with them, are freed as soon as by SGLang alone."""

from __future__ import annotations

import weakref

import pytest

from tests.harness.prompts import Tokens, interleaved

SHORT, LONG = 4, 60


def freed_after(harness, changes=None):
    """For each of some requests that end one after the other, beside others: the pass after which it was freed; None:
    not even once the engine was idle.

    :param changes: what is done, by pass.
    """
    prompts = interleaved(Tokens().families(4, 4, 128, 16))
    for i, prompt in enumerate(prompts):
        harness.send(prompt, LONG if i % 4 == 0 else SHORT + i)
    alive = {rid: weakref.ref(req) for rid, req in harness._requests.items()}
    harness._requests.clear()
    freed = dict.fromkeys(alive)
    for number in range(LONG + 60):
        if changes and number in changes:
            changes[number](harness.scheduler.feather)
        harness.step()
        freed |= {rid: harness.log.passes for rid, req in alive.items() if freed[rid] is None and req() is None}
    assert harness.is_idle()
    return freed


@pytest.mark.parametrize(("overlap", "row_order"), [(True, True), (True, False), (False, True)])
def test_a_finished_request_is_freed_within_two_passes_of_fcfs(start, overlap, row_order):
    harness = start(max_running_requests=24, overlap=overlap)
    expected = freed_by_fcfs(harness)
    harness.reconfigure("feather", row_order=row_order)
    compare(freed_after(harness), expected)


def switch_off(adapter):
    adapter.switch(on=False)


def switch_on(adapter):
    adapter.switch(on=True)


def give_up(adapter):
    for _ in range(2):
        adapter._failed(RuntimeError("broken"))
    assert adapter.fallen


@pytest.mark.parametrize(
    "changes", [{8: switch_off}, {8: switch_off, 12: switch_on}, {8: give_up}], ids=["off", "off and on", "gave up"]
)
def test_a_policy_that_stands_back_lets_go(start, changes):
    harness = start(max_running_requests=24)
    expected = freed_by_fcfs(harness)
    harness.reconfigure("feather")
    compare(freed_after(harness, changes), expected)


def freed_by_fcfs(harness):
    harness.reconfigure("fcfs")
    expected = freed_after(harness)
    assert sum(after is not None for after in expected.values()) >= 12, "SGLang itself keeps the last batch"
    return expected


def compare(found, expected):
    for rid, after in expected.items():
        assert after is None or (found[rid] is not None and found[rid] - after <= 2), (rid, after, found[rid])
