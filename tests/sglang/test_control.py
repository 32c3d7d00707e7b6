"""Scenario 23: with ``SGLANG_RADIX_FORCE_MISS`` nothing is found in the cache, which separates what an order brings
from what the cache brings."""

from __future__ import annotations

import pytest

from tests.harness.prompts import Tokens, interleaved
from tests.harness.scheduler import environment

FAMILIES, EACH, SHARED, OWN, NEW = 4, 4, 256, 16, 8


def prefill(harness, policy, **variables):
    """Tokens computed in prefill, tokens found in the cache, and the requests that ended."""
    harness.reconfigure(policy, chunked_prefill_size=8192)
    with environment(**variables):
        harness.send_all(interleaved(Tokens().families(FAMILIES, EACH, SHARED, OWN)), new=NEW)
        log = harness.run()
    computed = sum(sum(batch.extends) for batch in log.batches if batch.mode == "EXTEND")
    return computed, log.cached_tokens, len(log.finished)


def test_without_the_cache_no_policy_saves_a_token(start):
    harness = start(max_total_tokens=400_000)
    requests = FAMILIES * EACH
    everything = requests * (SHARED + OWN)
    assert prefill(harness, "feather") == (everything - (EACH - 1) * FAMILIES * SHARED, 3072, requests)
    for policy in ("fcfs", "feather"):
        assert prefill(harness, policy, SGLANG_RADIX_FORCE_MISS="1") == (everything, 0, requests)


@pytest.mark.parametrize("pool", [2_000])
def test_the_control_ends_in_a_pool_that_holds_a_few_requests(start, pool):
    """Every request is there in its own copy, so that the pool binds: nobody is starved, and nothing is lost."""
    harness = start(max_total_tokens=pool)
    assert prefill(harness, "feather", SGLANG_RADIX_FORCE_MISS="1")[1:] == (0, FAMILIES * EACH)
