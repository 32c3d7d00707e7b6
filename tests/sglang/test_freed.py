"""Finished requests, with the prompts and pictures that were sent with them, are freed as soon as by SGLang alone."""

from __future__ import annotations

import weakref

import pytest

from tests.harness.prompts import Tokens, interleaved

SHORT, LONG = 4, 60


def freed_after(harness):
    """For each of some requests that end one after the other, beside others: the pass after which it was freed; None:
    not even once the engine was idle."""
    prompts = interleaved(Tokens().families(4, 4, 128, 16))
    for i, prompt in enumerate(prompts):
        harness.send(prompt, LONG if i % 4 == 0 else SHORT + i)
    alive = {rid: weakref.ref(req) for rid, req in harness._requests.items()}
    harness._requests.clear()
    freed = dict.fromkeys(alive)
    for _ in range(LONG + 60):
        harness.step()
        freed |= {rid: harness.log.passes for rid, req in alive.items() if freed[rid] is None and req() is None}
    assert harness.is_idle()
    return freed


@pytest.mark.parametrize(("overlap", "row_order"), [(True, True), (True, False), (False, True)])
def test_a_finished_request_is_freed_within_two_passes_of_fcfs(start, overlap, row_order):
    harness = start(max_running_requests=24, overlap=overlap)
    harness.reconfigure("fcfs")
    expected = freed_after(harness)
    assert sum(after is not None for after in expected.values()) >= 12, "SGLang itself keeps the last batch"
    harness.reconfigure("feather", row_order=row_order)
    found = freed_after(harness)
    for rid, after in expected.items():
        assert after is None or (found[rid] is not None and found[rid] - after <= 2), (rid, after, found[rid])
