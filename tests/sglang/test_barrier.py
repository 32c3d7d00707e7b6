"""A prefix is computed once: the barrier on the real Scheduler, under the true overlap loop.

Eight families of eight, all queued before the first pass. A prefill's KV enters the radix tree only when its result is
processed, which under overlap is after the next batch was built: first come, first served computes it again and again.
"""

from __future__ import annotations

import pytest

from tests.harness.prompts import Tokens, cacheable_tokens, grouped, interleaved

NEW = 32
OWN = 16
ROOMY = 400_000
"""Tokens of a KV pool that binds nobody."""


def run(harness, policy, prompts, page, **settings):
    """Runs the prompts to their end; returns (steps, cached tokens, the optimum for the order of admission)."""
    harness.reconfigure(policy, **settings)
    by_id = dict(zip(harness.send_all(prompts, new=NEW), prompts, strict=True))
    log = harness.run()
    assert set(log.finished) == set(by_id)
    return log.steps, log.cached_tokens, cacheable_tokens([by_id[rid] for rid in log.admitted], page)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [256, 1024, 3072])
@pytest.mark.parametrize("chunked", [8192, 2048])
@pytest.mark.parametrize("page", [1, 16])
def test_eight_families_of_eight(start, page, chunked, shared, capsys):
    harness = start(max_total_tokens=ROOMY, page_size=page)
    families = Tokens().families(8, 8, shared, OWN)
    best = 8 * 7 * shared
    policies = ("fcfs", "lpm", "dfs-weight") if page == 1 else ("fcfs",)  # the others are only printed
    base, *others = (
        run(harness, policy, interleaved(families), page, chunked_prefill_size=chunked) for policy in policies
    )
    assert base[1] < best, "the case is not hard: first come, first served reuses everything"
    lines = [f"{name} {o[0]} {o[1]}" for name, o in zip(policies, [base, *others], strict=True)]
    for order in ("held", "missing"):
        for arrange in (interleaved, grouped):
            steps, cached, optimum = run(
                harness, "feather", arrange(families), page, chunked_prefill_size=chunked, order=order
            )
            lines.append(f"feather {order} {arrange.__name__} {steps} {cached}")
            assert cached == optimum == best
            assert steps <= base[0] + 2
    with capsys.disabled():
        print(f"\npage {page} chunk {chunked} shared {shared}, batches and cached tokens: " + ", ".join(lines))


@pytest.mark.slow
def test_the_barrier_is_what_brings_the_reuse(start):
    """The control: the same order, without the barrier."""
    harness = start(max_total_tokens=ROOMY)
    prompts = interleaved(Tokens().families(8, 8, 256, OWN))
    _, cached, _ = run(harness, "feather", prompts, 1, barrier=False, chunked_prefill_size=8192)
    assert cached < 14_336 // 2
    _, cached, _ = run(harness, "feather", prompts, 1, chunked_prefill_size=8192)
    assert cached == 14_336


def test_one_family(start):
    harness = start(max_total_tokens=ROOMY)
    prompts = grouped(Tokens().families(1, 8, 3000, OWN))
    base = run(harness, "fcfs", prompts, 1, chunked_prefill_size=2048)
    steps, cached, _ = run(harness, "feather", prompts, 1, chunked_prefill_size=2048)
    assert cached == 21_000
    assert steps <= base[0] + 2


@pytest.mark.slow
@pytest.mark.parametrize("order", ["held", "missing"])
@pytest.mark.parametrize("reverse", [False, True])
def test_nested_prompts_wait_for_the_deepest_at_once(start, order, reverse):
    """Eight prompts, each the beginning of the next: whose path is shared deepest leads, not the first."""
    harness = start(max_total_tokens=ROOMY)
    longest = Tokens().take(8 * 256)
    prompts = [longest[: 256 * n] for n in range(1, 9)]
    if reverse:
        prompts.reverse()
    base = run(harness, "fcfs", prompts, 1, chunked_prefill_size=8192)
    steps, cached, optimum = run(harness, "feather", prompts, 1, chunked_prefill_size=8192, order=order)
    assert cached == optimum
    assert steps <= base[0] + 2


@pytest.mark.slow
@pytest.mark.parametrize("length", [1024, 1088])
@pytest.mark.parametrize("chunked", [8192, 2048])
@pytest.mark.parametrize("order", ["held", "missing"])
def test_a_short_common_prompt_serialises_nobody(start, order, chunked, length):
    """32 unrelated prompts behind one 64-token system prompt: every batch is the one that FCFS forms."""
    harness = start(max_total_tokens=ROOMY)
    tokens = Tokens()
    common = tokens.take(64)
    prompts = [common + tokens.take(length - 64) for _ in range(32)]
    shapes = []
    for policy, settings in (("fcfs", {}), ("feather", {"order": order, "row_order": False})):
        harness.reconfigure(policy, chunked_prefill_size=chunked, **settings)
        harness.send_all(prompts, new=8)
        shapes.append(harness.run().shape())
    assert shapes[0] == shapes[1]
    assert harness.state()["feather"]["barrier_waits"] == 0
