"""Nobody waits in vain: held requests lose nothing, and nothing that happens to a leader strands its family."""

from __future__ import annotations

import pytest

from tests.harness.prompts import Tokens, cacheable_tokens, interleaved

ROOMY = 400_000


def staggered(harness, policy, prompts, new=32, **settings):
    """Sends one prompt a pass; returns the log and each request's passes from arrival to first token."""
    harness.reconfigure(policy, **settings)
    sent = {}
    for prompt in prompts:
        rid = harness.send(prompt, new)
        sent[rid] = harness.log.passes
        harness.step()
    log = harness.run()
    return log, {rid: log.first_token[rid] - at for rid, at in sent.items()}


def admitted_in_pass(log):
    return {rid: batch.step for batch in reversed(log.batches) if batch.is_prefill for rid in batch.rids}


@pytest.mark.parametrize("order", ["held", "missing"])
def test_siblings_wait_for_their_prefix_not_for_the_whole_leader(start, order):
    harness = start(max_total_tokens=ROOMY)
    tokens = Tokens()
    prefix = tokens.take(256)
    leader, siblings = prefix + tokens.take(6000), [prefix + tokens.take(16) for _ in range(7)]
    passes = []
    for policy, settings in (("fcfs", {}), ("feather", {"order": order})):
        harness.reconfigure(policy, chunked_prefill_size=2048, **settings)
        harness.send(leader, 32)
        harness.step()
        ids = harness.send_all(siblings, 32)
        log = harness.run()
        by_pass = admitted_in_pass(log)
        passes.append([by_pass[rid] for rid in ids])
    assert passes[0] == passes[1]
    assert log.cached_tokens == 7 * 256


@pytest.mark.slow
@pytest.mark.parametrize("order", ["held", "missing"])
def test_siblings_that_arrive_beside_a_leader(start, order):
    harness = start(max_total_tokens=ROOMY)
    (prompts,) = Tokens().families(1, 13, 3000, 16)
    _, base = staggered(harness, "fcfs", prompts, chunked_prefill_size=2048)
    log, waits = staggered(harness, "feather", prompts, chunked_prefill_size=2048, order=order)
    assert log.cached_tokens == 36_000
    assert all(waits[rid] <= base[rid] + 2 for rid in waits), (waits, base)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["queued", "chunked", "in flight", "one token"])
@pytest.mark.parametrize("order", ["held", "missing"])
def test_a_leader_that_goes_away(start, when, order):
    """Scenario 6, and its variants: the next one leads, what was published is reused, the pool is clean."""
    harness = start(max_total_tokens=ROOMY)
    harness.reconfigure("feather", chunked_prefill_size=2048, order=order)
    free = harness.scheduler.token_to_kv_pool_allocator.available_size()
    (prompts,) = Tokens().families(1, 8, 3072, 16)
    leader = harness.send(prompts[0], 1 if when == "one token" else 32)
    if when == "queued":
        siblings = harness.send_all(prompts[1:], 32)
        harness.abort(leader)
    else:
        siblings = harness.send_all(prompts[1:], 32)
        for _ in range(1 if when == "chunked" else 2):
            harness.step()
        if when != "one token":
            harness.abort(leader)
    log = harness.run()
    assert set(siblings) <= set(log.finished)
    assert sum(log.cached[rid] for rid in siblings) >= 6 * 3072
    harness.flush()
    assert harness.scheduler.token_to_kv_pool_allocator.available_size() == free
    harness.scheduler.feather.core.check_integrity()


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "chunked"), [(256, 8192), (1024, 8192), (1024, 2048), (3072, 2048)])
def test_held_requests_are_not_later_than_under_fcfs(start, shared, chunked, capsys):
    """Scenario 24: a burst; no first token more than two passes later, and earlier in the mean.

    A pass of FCFS computes what the barrier saves, so the mean is taken of the tokens computed up to the first token:
    passes are not equally long.
    """
    harness = start(max_total_tokens=ROOMY)
    prompts = interleaved(Tokens().families(8, 8, shared, 16))
    passes, computed = [], []
    for policy in ("fcfs", "feather"):
        harness.reconfigure(policy, chunked_prefill_size=chunked)
        ids = harness.send_all(prompts, 32)
        log = harness.run()
        passes.append([log.first_token[rid] for rid in ids])
        computed.append([sum(sum(b.extends) for b in log.batches if b.step < at) for at in passes[-1]])
    held = slice(8, None)  # the first of each family leads
    assert all(b <= a + 2 for a, b in zip(*passes, strict=True))
    means = [sum(tokens[held]) / len(tokens[held]) for tokens in computed]
    assert means[1] <= means[0]
    with capsys.disabled():
        print(
            f"\nshared {shared} chunk {chunked}: tokens computed before a held first token, fcfs and feather: {means}"
        )


@pytest.mark.parametrize("publishes", [True, False])
def test_duplicates_of_an_uncached_prompt(start, publishes):
    """Scenario 25: one leads and two hit; where the leader's KV will not be published, nobody waits."""
    harness = start(max_total_tokens=ROOMY)
    harness.reconfigure("feather", chunked_prefill_size=8192)
    prompt = Tokens().take(1024)
    for _ in range(3):
        harness.send(prompt, 8)
        if not publishes:
            req = harness.scheduler.waiting_queue.pop()
            req.skip_radix_cache_insert = True  # as SGLang sets it where positions or embeddings are overridden
            harness.scheduler.waiting_queue.append(req)
    log = harness.run()
    if publishes:
        assert sorted(log.cached.values()) == [0, 1023, 1023]
    else:
        assert len(log.batches[0].rids) == 3, "they were not admitted together"


@pytest.mark.slow
@pytest.mark.parametrize("order", ["held", "missing"])
def test_warm_families_are_grouped(start_alone, order, capsys):
    """Rows are scarce and prefixes cached: a decode batch holds few families."""
    harness = start_alone(max_total_tokens=ROOMY, max_running_requests=8)
    families = Tokens().families(8, 8, 1024, 16)
    means = {}
    for policy, settings in (("fcfs", {}), ("feather", {"order": order})):
        harness.reconfigure(policy, **settings)
        harness.send_all([members[0][:1024] for members in families], 1)
        harness.run()
        family_of = {}
        for i, prompt in enumerate(interleaved(families)):
            family_of[harness.send(prompt, 32)] = i % 8
        log = harness.run()
        for batch in list(log.batches):
            if not set(batch.rids) <= family_of.keys():
                log.batches.remove(batch)
        means[policy] = log.families_in_decode(family_of.__getitem__)
    with capsys.disabled():
        print(f"\nfamilies in a decode batch, {order}: {means}")
    assert means["feather"] <= 2 < means["fcfs"]


def test_cached_tokens_count_by_the_order_of_admission():
    prompts = [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 9], [7]]
    assert cacheable_tokens(prompts, 1) == 3 + 2
    assert cacheable_tokens(prompts, 2) == 2 + 2
