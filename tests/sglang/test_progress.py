"""Progress: with somebody waiting that fits and nothing running, somebody is admitted, whatever the policy does.

And isolation: what one namespace sends neither starves another, nor shows in how another is served.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from feather_sglang.core.interface import Admissions, Decode
from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.sglang import ranks as ranks_module
from feather_sglang.sglang.progress import PATIENCE
from feather_sglang.sglang.ranks import DisagreementError, Ranks
from tests.harness.mirror import check_mirror
from tests.harness.parking import park_under_pressure
from tests.harness.prompts import Tokens, interleaved

NOBODY = Admissions([], held=0, kept=0, skipped=0, stop=None)


@pytest.fixture
def harness(start_alone):
    harness = start_alone()
    harness.reconfigure("feather")
    return harness


def passes_until_admitted(harness):
    before, passes = len(harness.log.admitted), 0
    while len(harness.log.admitted) == before:
        harness.step()
        passes += 1
        assert passes < 10 * PATIENCE
    return passes


def test_a_core_that_names_nobody_is_built_anew_and_then_given_up(harness, caplog, monkeypatch):
    """The engine is idle, so SGLang is offered its queue after some passes: the core has failed."""
    monkeypatch.setattr(SchedulerCore, "plan_admissions", lambda core, limits: NOBODY)
    sent = harness.send_all(interleaved(Tokens().families(2, 3, 128, 16)), new=4)
    assert passes_until_admitted(harness) <= PATIENCE + 1
    adapter = harness.scheduler.feather
    assert (adapter.failures, adapter.fallen) == (1, None)
    assert "StalledError" in caplog.text
    assert "named 0" in caplog.text, "the last plans are in the log"
    harness.run()
    assert set(harness.log.finished) == set(sent)
    late = harness.send(Tokens().take(50), 4)
    assert passes_until_admitted(harness) <= PATIENCE + 1
    assert (adapter.failures, adapter.fallen is not None) == (2, True)
    harness.run()
    assert late in harness.log.finished
    quick = harness.send(Tokens().take(60), 4)
    assert passes_until_admitted(harness) <= 1
    harness.run()
    assert quick in harness.log.finished


@pytest.mark.parametrize("alike", [True, False], ids=["both", "alone"])
def test_of_two_ranks_both_build_their_cores_anew_or_the_server_ends(harness, monkeypatch, alike):
    """Whoever has a core that stalls tells so, and in which pass, before it runs what it admitted first come first
    served. Two real ranks: ``tests/live/test_ranks.py``."""
    reports = []
    store = SimpleNamespace(add=lambda key, amount: reports.append(key) or (2 if alike else 1))
    monkeypatch.setattr(Ranks, "of", classmethod(lambda cls, scheduler: Ranks(2, "test", store)))
    monkeypatch.setattr(ranks_module, "PATIENCE", 0.0)
    harness.reconfigure("feather")
    harness.scheduler.ingest_requests()  # the leader's first word
    adapter = harness.scheduler.feather
    monkeypatch.setattr(adapter.core, "plan_admissions", lambda limits: NOBODY)
    sent = harness.send(Tokens().take(50), 4)
    if alike:
        assert passes_until_admitted(harness) <= PATIENCE + 1
        assert (adapter.failures, adapter.fallen) == (1, None)
        assert sent in harness.run().finished
    else:
        with pytest.raises(DisagreementError, match=r"failed on 1 of 2 ranks .*StalledError"):
            passes_until_admitted(harness)
        assert harness.log.steps == 0, "nothing ran"
    (report,) = set(reports)
    assert report == f"test/failure 1, in pass {adapter._failed_in}: StalledError"


def test_who_is_put_off_by_sglang_is_no_failure(harness, monkeypatch):
    """The plan's first is refused in every pass (as where a prefix is being fetched), and others would be taken."""
    harness.reconfigure("feather", barrier=False)
    tokens = Tokens()
    stuck, ready = harness.send(tokens.take(40), 4), harness.send(tokens.take(40), 4)
    plan = SchedulerCore.plan_admissions

    def only_the_first(core, limits):
        named = plan(core, limits)
        kept = [c for c in named.order if harness.scheduler.feather.book.waiting[c.id].req.rid == stuck]
        return named._replace(order=kept)

    monkeypatch.setattr(SchedulerCore, "plan_admissions", only_the_first)
    scheduler = harness.scheduler
    monkeypatch.setattr(scheduler, "enable_lora", True)
    monkeypatch.setattr(scheduler, "can_schedule_lora_req", lambda req, running: req.rid != stuck)
    assert passes_until_admitted(harness) <= PATIENCE + 1
    assert harness.log.admitted == [ready]
    assert (scheduler.feather.failures, scheduler.feather.fallen) == (0, None)
    monkeypatch.undo()
    harness.step()
    check_mirror(harness)
    assert {stuck, ready} <= set(harness.run().finished)


def test_a_selector_that_lets_nobody_decode(harness, monkeypatch):
    harness.reconfigure("feather", decode="families")
    rows = park_under_pressure(harness)
    choose = rows._choose
    rows._choose = lambda limits, residents: choose(limits, residents) and Decode([], [], [], [])
    sent = harness.send_all(interleaved(Tokens().families(2, 2, 64, 16)), new=3)
    harness.run(passes=20 * PATIENCE)
    assert set(harness.log.finished) == set(sent)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["held", "missing"])
def test_somebody_is_admitted_whatever_waits(start_alone, order):
    """Requests of every size against a small pool: an idle engine is never left standing for more than two passes."""
    harness = start_alone(max_total_tokens=3_000, max_running_requests=3)
    harness.reconfigure("feather", order=order, gate="static", max_wait_tokens=500)
    tokens = Tokens()
    for i in range(40):
        harness.send(tokens.take(1 + (i * 397) % 2_900), new=1 + i % 40)
    still = 0
    while not harness.is_idle():
        idle = not harness.scheduler.running_batch.reqs and harness.queue
        still = still + 1 if harness.step() is None and idle else 0
        assert still <= 2
    assert len(harness.log.finished) == 40


@pytest.mark.slow
@pytest.mark.parametrize(("order", "aging"), [("held", 0.0), ("missing", 0.0), ("missing", 0.2)])
def test_a_flood_of_one_tenant_makes_another_wait_no_longer_than_the_bound(start_alone, order, aging):
    """Three of the flood a pass, all of one family that is running; the other tenant's requests share nothing."""
    bound = 8_000
    harness = start_alone(max_total_tokens=400_000, max_running_requests=4)
    harness.reconfigure("feather", order=order, aging=aging, max_wait_tokens=bound)
    core, tokens = harness.scheduler.feather.core, Tokens()
    flood = tokens.take(1_024)
    sent = {}
    for step in range(150):
        for _ in range(3):
            harness.send(flood + tokens.take(16), 4, cache_salt="flood")
        if step % 30 == 10:
            sent[harness.send(tokens.take(700), 4, cache_salt="other")] = core.scheduled_tokens
        harness.step()
        for rid in sent.keys() & harness.log.admitted:
            assert core.scheduled_tokens - sent.pop(rid) <= bound + 3 * 1_100  # seen a pass later
    assert all(core.scheduled_tokens - since <= bound + 3 * 1_100 for since in sent.values())
    assert len(harness.queue) > 200, "it is a flood"


@pytest.mark.slow
def test_how_one_namespace_is_served_does_not_depend_on_what_another_one_asks(start):
    """The same lengths and arrivals, and prompts of a neighbour that are ours, or are not: every batch is the same."""
    harness = start(max_running_requests=6)
    tokens = Tokens()
    ours = interleaved(tokens.families(3, 6, 300, 20))
    others = interleaved(tokens.families(3, 6, 300, 20))
    shapes = []
    for theirs in (ours, others):
        harness.reconfigure("feather")
        for number, (mine, neighbours) in enumerate(zip(ours, theirs, strict=True)):
            harness.send(neighbours, 6, rid=f"b{number}", cache_salt="b")
            harness.send(mine, 6, rid=f"a{number}", cache_salt="a")
            if number % 3 == 2:
                harness.step()
        shapes.append(harness.run().shape())
    assert shapes[0] == shapes[1]
