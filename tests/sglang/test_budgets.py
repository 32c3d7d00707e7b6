"""What the plan takes for a pass's budgets is what the engine's own adder will spend."""

from __future__ import annotations

import random

import pytest

from tests.harness.mirror import check_mirror
from tests.harness.prompts import Tokens


@pytest.mark.slow
@pytest.mark.parametrize("page", [1, 16])
def test_in_a_small_pool_nothing_is_planned_that_the_engine_refuses(start, page):
    """Prompts that share nothing, of any length against the page, and output that fills the rest of the pool."""
    harness = start(page_size=page, max_total_tokens=4096, chunked_prefill_size=512, max_running_requests=12)
    draw = random.Random(7)
    tokens = Tokens()
    rids = []
    for _ in range(60):
        rids.append(harness.send(tokens.take(draw.randint(1, 900)), new=draw.randint(1, 300)))
        harness.step()
        check_mirror(harness)
    harness.run(passes=20_000)
    assert set(harness.log.finished) == set(rids)
    assert harness.state()["feather"]["refused"] == 0


def test_a_stub_is_answered_at_once(start):
    """A request that SGLang refused still goes through the queue, as one token: ahead of everybody."""
    harness = start(max_total_tokens=4096, max_running_requests=2)
    tokens = Tokens()
    for _ in range(6):
        harness.send(tokens.take(500), new=20)
    harness.step()
    stub = harness.send(tokens.take(100), new=4, rid="stub", return_logprob=True, logprob_start_len=5_000)
    assert [t.req.rid for t in harness.scheduler.feather.book.express.values()] == ["stub"]
    check_mirror(harness)
    harness.run()
    check_mirror(harness)
    assert harness.log.admitted.index(stub) <= 3
    assert harness.state()["feather"]["waiting"] == 0
