"""Where the engine does not do what the core believed: nothing is lost, and the next pass knows better."""

from __future__ import annotations

import pytest

from tests.harness.mirror import check_mirror
from tests.harness.prompts import Tokens, interleaved

ROOMY = 400_000


def test_a_request_that_the_core_refuses_is_served(start, caplog):
    """An empty prompt has no tokens to share, and is no failure of the core."""
    harness = start(max_total_tokens=ROOMY)
    harness.reconfigure("feather")
    tokens = Tokens()
    ids = [harness.send(prompt, 4) for prompt in (tokens.take(100), [], tokens.take(100))]
    log = harness.run()
    assert set(log.finished) == set(ids)
    adapter = harness.scheduler.feather
    assert (adapter.failures, adapter.fallen) == (0, None)
    assert any("shares nothing" in record.message for record in caplog.records)
    assert adapter.watch.fallbacks["unreadable_request"] == 1


def test_a_family_that_the_engine_evicted(start_alone):
    """It is believed to be cached; the first match shows that it is not, and its siblings wait after all."""
    harness = start_alone(max_total_tokens=9_000, max_running_requests=16)
    harness.reconfigure("feather", chunked_prefill_size=8192)
    tokens = Tokens()
    prefix = tokens.take(512)
    harness.send(prefix + tokens.take(16), 4)
    harness.run()
    for _ in range(150):
        harness.send(tokens.take(60), 4)
    harness.run()
    siblings = [harness.send(prefix + tokens.take(16), 4) for _ in range(8)]
    log = harness.run()
    assert sum(log.cached[rid] for rid in siblings) == 7 * 512
    check_mirror(harness)


def test_the_barrier_holds_under_a_backlog(start):
    """All are past the fairness bound: arrival order, but a prefix in flight is still waited for."""
    harness = start(max_total_tokens=ROOMY)
    harness.reconfigure("feather", chunked_prefill_size=8192, max_wait_tokens=50_000)
    harness.send_all(interleaved(Tokens().families(8, 8, 1024, 16)), 32)
    harness.scheduler.feather.core._scheduled += 100_000
    assert harness.run().cached_tokens == 57_344


@pytest.mark.slow
@pytest.mark.parametrize("order", ["held", "missing"])
def test_without_chunked_prefill_the_order_is_kept(start_alone, order):
    """A prompt longer than what is left of the budget ends the pass, and keeps its turn."""
    harness = start_alone(max_total_tokens=ROOMY, chunked_prefill_size=-1, max_prefill_tokens=2_000)
    tokens = Tokens()
    prompts = [tokens.take(length) for length in (900, 900, 900, 1500, 400, 1900, 300, 900)]
    if order == "missing":
        prompts = [tokens.take(900) for _ in range(8)]
    shapes = []
    for policy, settings in (("fcfs", {}), ("feather", {"order": order, "row_order": False})):
        harness.reconfigure(policy, **settings)
        harness.send_all(prompts, 8)
        shapes.append(harness.run().shape())
    assert shapes[0] == shapes[1]
    assert harness.state()["feather"]["refused"] == 0


@pytest.mark.slow
def test_figures_of_a_core_that_fails_are_no_end(start_alone, monkeypatch):
    """``/server_info`` is asked in the event loop: what goes wrong there ends there."""
    harness = start_alone(max_total_tokens=ROOMY)
    harness.reconfigure("feather")

    class Panic(BaseException):
        pass

    def fail():
        raise Panic("in the extension")

    with monkeypatch.context() as broken:
        broken.setattr(harness.scheduler.feather.core, "state", fail)
        shown = harness.state()["feather"]
    assert shown["failures"] == 0, "what perhaps one rank is asked must not change what it decides"
    assert shown["fallbacks"]["log_off"] == 1
    harness.send(Tokens().take(50), 4)
    assert len(harness.run().finished) == 1
    assert harness.state()["feather"]["admitted"] == 1
