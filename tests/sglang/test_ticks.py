"""The leader's ticks on a real Scheduler: what they carry, when they go out, and what they do where they arrive."""

from __future__ import annotations

import collections
import itertools
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from sglang.srt.managers.io_struct import SetInternalStateReq

from feather_sglang.core.gates.fixed import Fixed
from feather_sglang.sglang import ranks as ranks_module
from feather_sglang.sglang import ticks as ticks_module
from feather_sglang.sglang.adapter import NOT_TAKEN_UP
from feather_sglang.sglang.decision_log import DecisionLog
from feather_sglang.sglang.hooks import split_received
from feather_sglang.sglang.keeper import Keeper
from feather_sglang.sglang.metrics import Metrics
from feather_sglang.sglang.pace import Pace
from feather_sglang.sglang.ranks import DisagreementError, Ranks
from feather_sglang.sglang.ticks import Tick
from tests.harness.prompts import Tokens, interleaved
from tests.waiting import PATIENCE


class Recorder(Fixed):
    """A gate that learns: it keeps what it is told."""

    name = "recorder"

    def __init__(self):
        self.told = []

    def cut(self, view, candidates):
        return len(candidates)

    def observe(self, step):
        self.told.append(step)


class Store:
    """Of a ``torch.distributed.Store``, what the ranks use."""

    def __init__(self):
        self._counts, self._lock = collections.Counter(), threading.Lock()

    def add(self, key, amount):
        with self._lock:
            self._counts[key] += amount
            return self._counts[key]


@pytest.fixture
def recorder(monkeypatch):
    """Has a core take steps although its gate is ``Fixed``."""
    from feather_sglang.core.scheduler import SchedulerCore

    monkeypatch.setattr(SchedulerCore, "wants_steps", property(lambda core: isinstance(core.gate, Recorder)))
    return Recorder()


def several(monkeypatch, harness, **settings):
    """Reattach the policy as on one of two ranks; returns the adapter."""
    monkeypatch.setattr(Ranks, "of", classmethod(lambda cls, scheduler: Ranks(2, "test", Store())))
    harness.reconfigure("feather", **settings)
    return harness.scheduler.feather


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "normal"])
def test_steps_reach_the_gate_with_what_was_in_them(start, recorder, monkeypatch, overlap):
    monkeypatch.setattr(ticks_module, "EPISODE_STEPS", 1)
    harness = start(overlap=overlap)
    harness.reconfigure("feather")
    harness.scheduler.feather.core.gate = recorder
    harness.send_all(interleaved(Tokens().families(2, 4, 128, 16)), new=12)
    log = harness.loop()
    told = recorder.told
    assert [step.seq for step in told] == sorted({step.seq for step in told})
    assert told[-1].seq - told[0].seq < log.steps
    assert len(told) >= log.steps - 3, "but for the first, and one that an idle pass came before"
    assert all(step.seconds > 0 for step in told)
    decodes = [step for step in told if step.kind == "decode"]
    assert {step.requests for step in decodes} <= {len(b.rids) for b in log.batches if b.mode == "DECODE"}
    full = max(decodes, key=lambda step: step.total_kv)
    assert full.requests == full.tokens == 8
    assert 8 * 144 < full.total_kv <= 8 * 156
    assert 144 < full.longest_kv <= 156
    assert full.total_kv - full.distinct_kv == 6 * 128, "each family's prefix is held once"
    assert all(step.computed == 0 for step in decodes)
    assert all(step.computed > 0 for step in told if step.kind == "prefill")


def test_nothing_is_measured_for_a_gate_that_learns_nothing(start, monkeypatch):
    measured = []
    for name in ("launches", "ended"):
        monkeypatch.setattr(ticks_module.Steps, name, lambda *args, name=name: measured.append(name))
    harness = start()
    harness.reconfigure("feather")
    harness.send_all(interleaved(Tokens().families(2, 2, 128, 16)), new=4)
    harness.loop()
    assert measured == []
    assert harness.scheduler.feather_ticks.seen == 0, "a single rank has nothing to say but its bound"


def test_a_step_that_a_pause_fell_into_is_not_told(start, recorder, monkeypatch):
    monkeypatch.setattr(ticks_module, "EPISODE_STEPS", 1)
    harness = start()
    harness.reconfigure("feather")
    harness.scheduler.feather.core.gate = recorder
    harness.send(Tokens().take(64), new=30)
    for _ in range(10):
        harness.scheduler.ingest_requests()
        harness.step()
    harness.pause("in_place")
    harness.scheduler.ingest_requests()
    before = len(recorder.told)
    harness.resume()
    harness.step()
    harness.scheduler.ingest_requests()
    assert len(recorder.told) == before
    harness.loop()
    assert len(recorder.told) > before
    gaps = [b.seq - a.seq for a, b in zip(recorder.told, recorder.told[1:], strict=False)]
    assert max(gaps) == 2, "it is counted"


def test_a_tick_is_sent_until_it_was_seen_and_counts_once(start, recorder):
    harness = start()
    harness.reconfigure("feather")
    harness.scheduler.feather.core.gate = recorder
    scheduler = harness.scheduler
    scheduler.ingest_requests()
    harness.send(Tokens().take(64), new=40)
    harness.run()
    sent = [scheduler._poll_timeout_aborts() for _ in range(3)]  # three turns that received nothing
    assert [tick.seq for (tick,) in sent] == [1, 1, 1]
    for messages in sent:
        scheduler.process_input_requests(messages)
    steps = len(recorder.told)
    assert steps == len(sent[0][0].steps) > 20
    assert scheduler._poll_timeout_aborts() == []


def test_measuring_that_fails_ends_measuring_and_nothing_else(start, recorder, caplog, monkeypatch):
    harness = start()
    harness.reconfigure("feather")
    harness.scheduler.feather.core.gate = recorder
    monkeypatch.setattr(ticks_module.Steps, "ended", lambda *args: 1 / 0)
    rid = harness.send(Tokens().take(64))
    assert rid in harness.loop().finished
    assert caplog.text.count("measuring failed") == 1


def test_the_bound_is_what_was_scheduled_in_as_many_busy_seconds():
    pace = Pace(60, 10_000)
    assert (pace.look(0, 0), pace.bound) == (None, 600_000)
    bounds = [pace.look(i / 10, i * 50) for i in range(1, 200)]
    assert {bound for bound in bounds if bound is not None} == {30_000}, "500 tokens a second, 60 seconds"
    assert [pace.look(1000 + i, 199 * 50) for i in range(50)] == [None] * 50, "an idle server makes nobody wait"
    later = [pace.look(1100 + i / 10, 20_000 + i * 500) for i in range(600)]
    assert [bound for bound in later if bound is not None][-1] > 180_000, "it follows"
    before, pace.max_wait = pace.bound, 30
    assert 2 * pace.bound == pytest.approx(before, abs=2), "what was measured holds for another bound"
    pace.interrupt()
    assert pace.look(5000, 10**6) is None


def test_the_bound_goes_to_the_core_and_stays_when_the_core_is_built_anew(start):
    harness = start()
    harness.reconfigure("feather")
    adapter = harness.scheduler.feather
    clock = itertools.count()  # a second passes whenever it is looked at
    harness.scheduler.feather_ticks = ticks_module.Ticks(adapter, max_wait=30, clock=lambda: next(clock))
    before = adapter.settings.max_wait_tokens
    harness.send_all(interleaved(Tokens().families(2, 4, 128, 16)), new=12)
    harness.loop()
    bound = adapter.core.state()["max_wait_tokens"]
    assert bound == adapter.settings.max_wait_tokens != before
    adapter.reconfigure(replace(adapter.settings, aging=0.5))
    assert adapter.core.state()["max_wait_tokens"] == bound


def test_another_bound_goes_to_all_ranks_by_the_next_tick(start, monkeypatch):
    harness = start()
    adapter = several(monkeypatch, harness)
    ticks, scheduler = harness.scheduler.feather_ticks, harness.scheduler
    now = [100.0]
    monkeypatch.setattr(ticks, "_clock", lambda: now[0])
    scheduler.ingest_requests()
    before = adapter.core.state()["max_wait_tokens"]
    core = adapter.core
    assert scheduler.set_internal_state(SetInternalStateReq(server_args={"feather_max_wait": 1.5})).updated
    assert (harness.state()["feather"]["max_wait"], core.state()["max_wait_tokens"]) == (1.5, before)
    now[0] += ticks_module.REST
    (tick,) = scheduler._poll_timeout_aborts()
    assert tick.max_wait_tokens == 15_000
    harness.control(tick)
    assert core.state()["max_wait_tokens"] == adapter.settings.max_wait_tokens == 15_000
    assert adapter.core is core, "nothing was built anew"


def test_one_of_several_ranks_works_from_the_leaders_first_word_on(start, monkeypatch):
    harness = start()
    adapter = several(monkeypatch, harness)
    assert adapter.fallen == NOT_TAKEN_UP
    rid = harness.send(Tokens().take(64))
    assert adapter.book.waiting == {}
    leaders = replace(adapter.settings, hash_key=(7, 9), order="missing")
    harness.control(Tick(1, (0, 0, 0), settings=leaders))
    assert (adapter.fallen, adapter.settings) == (None, leaders)
    assert len(adapter.book.waiting) == 1, "what waits is taken over"
    harness.run()
    assert (rid in harness.log.finished, adapter.core.decisions[0]) == (True, 1)


def test_what_the_leader_learned_before_holds_for_all(start, monkeypatch):
    """Nodes have state files of their own, or none."""
    harness = start()
    adapter = several(monkeypatch, harness, gate="ucb")
    adapter.watch.keeper = Keeper(None, {}, every=1e9, writes=False, lost=lambda: None)
    adapter.watch.keeper.known = {"ucb": {"table": {"1,1,1": [9, 9.0, 9, 9.0]}}}
    leaders = {"ucb": {"table": {"2,5,0": [4, 100.0, 1, 50.0]}}}
    harness.control(Tick(1, (0, 0, 0), settings=adapter.settings, learned=leaders))
    assert adapter.fallen is None
    assert adapter.core.gate.dump() == leaders["ucb"]


def test_the_leader_itself_works_from_its_first_word_on(start, monkeypatch):
    harness = start()
    adapter = several(monkeypatch, harness)
    harness.scheduler.ingest_requests()
    assert adapter.fallen is None
    harness.send(Tokens().take(64))
    harness.loop()
    assert adapter.core.decisions[0] == 1


def test_a_rank_that_decided_otherwise_says_so(start, monkeypatch):
    harness = start()
    adapter = several(monkeypatch, harness)
    harness.scheduler.ingest_requests()
    harness.send(Tokens().take(64))
    harness.run()
    admitted, digest = adapter.core.decisions
    harness.control(Tick(2, (0, 0, 0)))
    harness.control(Tick(3, (0, admitted, digest)))
    with pytest.raises(DisagreementError, match="after 1 admissions the leader had the digest"):
        harness.control(Tick(4, (0, admitted, digest ^ 1)))
    with pytest.raises(DisagreementError, match="this rank never had"):
        harness.control(Tick(5, (0, admitted + 1, digest)))


def test_a_rank_with_another_policy_refuses_to_serve_with_a_leader_that_has_this_one(start):
    harness = start()
    harness.reconfigure("fcfs")
    with pytest.raises(DisagreementError, match="Start every node with the same arguments"):
        harness.control(Tick(1, (0, 0, 0)))


def test_a_tick_goes_to_the_ranks_that_share_a_queue():
    tick = Tick(1, (0, 0, 0))
    assert split_received(lambda receiver, reqs: (["work"], ["control", tick]), None, []) == (
        ["work", tick],
        ["control"],
    )


@pytest.fixture
def metrics():
    kinds = {"_counter_cls": Counter, "_gauge_cls": Gauge, "_histogram_cls": Histogram}
    registry = CollectorRegistry()
    classes = {name: partial(kind, registry=registry) for name, kind in kinds.items()}
    return Metrics(SimpleNamespace(labels={"rank": "0"}, **classes))


def served(harness, looks=lambda: None):
    """What the core decided in a run, somebody looking after each pass; the last requests come after an idle one."""
    harness.reconfigure("feather")
    tokens = Tokens()
    for idle_passes in (0, 2, 0):
        rids = harness.send_all(interleaved(tokens.families(2, 4, 128, 16)), new=5)
        while not harness.log.finished.keys() >= set(rids):
            harness.step()
            looks()
        for _ in range(idle_passes):
            harness.step()
            looks()
    harness.run()
    core = harness.scheduler.feather.core
    assert core.state()["running"] == 0
    return core.decisions, core.scheduled_tokens


def test_looking_changes_no_decision_for_only_the_leader_is_looked_at(start, metrics, tmp_path):
    harness = start()
    unseen = served(harness)
    harness.scheduler.flush_cache()

    def looks():
        watch, metrics.adapter, metrics._refreshed = adapter().watch, adapter(), 0.0
        watch.metrics, watch.log = metrics, watch.log or DecisionLog(tmp_path / "log", lambda: None)
        metrics.refresh()
        harness.state()

    def adapter():
        return harness.scheduler.feather

    assert served(harness, looks) == unseen
    assert metrics._of("admitted")._value.get() == 24


def test_what_fails_on_the_leader_alone_is_not_the_core(start, metrics, tmp_path, caplog, monkeypatch):
    harness = start()
    harness.reconfigure("feather")
    adapter = harness.scheduler.feather
    log = adapter.watch.log = DecisionLog(tmp_path / "log", lambda: None)
    monkeypatch.setattr(log, "planned", lambda *args, **named: 1 / 0)
    rid = harness.send(Tokens().take(64))
    harness.run()
    assert rid in harness.log.finished
    metrics.adapter = adapter
    monkeypatch.setattr(adapter.core, "families", lambda most: 1 / 0)
    metrics.refresh()
    assert (adapter.failures, adapter.watch.fallbacks["log_off"]) == (0, 2)
    assert adapter.core is not None
    assert caplog.text.count("it is watched no more") == 2


def test_ranks_that_fail_alike_go_on_and_one_that_fails_alone_does_not(monkeypatch):
    store = Store()
    ranks = [Ranks(2, "test", store) for _ in range(2)]
    threads = [threading.Thread(target=rank.agree_on_failure, args=("failure 1",)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    monkeypatch.setattr(ranks_module, "PATIENCE", 0.05)
    with pytest.raises(DisagreementError, match=r"failed on 1 of 2 ranks \(failure 2\)"):
        ranks[0].agree_on_failure("failure 2")


def test_a_failure_alone_ends_the_pass_before_anybody_is_admitted(start, monkeypatch):
    harness = start()
    adapter = several(monkeypatch, harness)
    monkeypatch.setattr(ranks_module, "PATIENCE", 0.05)
    harness.scheduler.ingest_requests()
    harness.send(Tokens().take(64))
    core = adapter.core
    monkeypatch.setattr(core, "plan_admissions", lambda limits: 1 / 0)
    with pytest.raises(DisagreementError, match="failed on 1 of 2 ranks"):
        harness.step()
    assert len(harness.queue) == 1
