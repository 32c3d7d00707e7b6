"""What goes wrong in the core stays there: no request is lost, and the second time the policy gives up."""

from __future__ import annotations

import pytest

from tests.harness.mirror import check_mirror
from tests.harness.prompts import Tokens, interleaved


class Panic(BaseException):
    """As a panic of the extension arrives: not an Exception."""


def break_core(adapter, method, error, times=1):
    """Have the core's ``method`` raise at its fifth call from now, in this core and ``times - 1`` rebuilt ones."""
    breaks = [times]
    build = adapter.mirror.new_core

    def arm(core):
        if breaks[0] == 0:
            return core
        breaks[0] -= 1
        original, calls = getattr(core, method), [0]

        def raising(*args):
            calls[0] += 1
            if calls[0] == 5:
                raise error
            return original(*args)

        object.__setattr__(core, method, raising)
        return core

    adapter.mirror.new_core = lambda settings: arm(build(settings))
    arm(adapter.core)


METHODS = ["enqueue", "begin", "plan_admissions", "settle", "leave"]
LOAD = {"chunked_prefill_size": 256, "max_running_requests": 6}


def serve(harness):
    tokens = Tokens()
    rids = []
    for prompt in interleaved(tokens.families(4, 6, 128, 40)):
        rids.append(harness.send(prompt, new=6))
        harness.abort(harness.send(tokens.take(30)))  # leaves the queue
        harness.step()
        check_mirror(harness)
    harness.run()
    return rids


@pytest.fixture
def harness(start):
    """A Scheduler with an adapter that never failed."""
    harness = start(**LOAD)
    harness.reconfigure("feather")
    return harness


@pytest.mark.parametrize("error", [RuntimeError("boom"), Panic("boom")], ids=["exception", "panic"])
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_first_failure_rebuilds_the_core(harness, caplog, method, error):
    adapter = harness.scheduler.feather
    break_core(adapter, method, error)
    rids = serve(harness)
    assert set(harness.log.finished) == set(rids)
    check_mirror(harness)
    assert (adapter.failures, adapter.fallen) == (1, None)
    assert "it is built anew" in caplog.text
    state = harness.state()["feather"]
    assert (state["waiting"], state["running"], state["policy"]) == (0, 0, "feather")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_the_second_ends_the_policy(harness, caplog, method):
    adapter = harness.scheduler.feather
    break_core(adapter, method, Panic("boom"), times=2)
    tokens = Tokens()
    rids = harness.send_all(interleaved(tokens.families(4, 6, 128, 40)), new=6)
    for _ in range(12):
        harness.abort(harness.send(tokens.take(30)))  # leaves the queue
        harness.step()
    rids += [harness.send(tokens.take(50)) for _ in range(8) if harness.step() is not None]
    harness.run()
    assert set(harness.log.finished) == set(rids)
    assert adapter.fallen == "Panic: boom"
    assert "first come, first served until it is started again" in caplog.text
    state = harness.state()["feather"]
    assert (state["policy"], state["reason"]) == ("fcfs", "Panic: boom")
    assert not [t for place in (adapter.book.waiting, adapter.book.running) for t in place]


def test_a_request_that_cannot_be_read_shares_nothing_and_is_served(harness, caplog, monkeypatch):
    """Scenario 15: loudly, and never taken for one that shares."""
    tokens = Tokens()
    prompt = tokens.take(300)
    harness.send(prompt)
    harness.run()
    scheduler = harness.scheduler
    add = scheduler._add_request_to_queue

    def without_salt(req, *args, **named):
        del req.cache_salt
        scheduler.waiting_queue.append(req)
        req.cache_salt = None

    scheduler._add_request_to_queue = without_salt
    try:
        rid = harness.send(prompt)
    finally:
        scheduler._add_request_to_queue = add
    assert f"request {rid} shares nothing" in caplog.text
    harness.run()
    assert rid in harness.log.finished
    assert harness.scheduler.feather.failures == 0
