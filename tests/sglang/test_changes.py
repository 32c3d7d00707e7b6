"""Changes at run time, as SGLang hands them to the Scheduler: all of a request or nothing, and ages go on."""

from __future__ import annotations

import pytest
from sglang.srt.managers import io_struct

from feather_sglang.sglang.changes import changed, of_wire, to_wire
from feather_sglang.sglang.options import OptionError
from tests.harness.mirror import check_mirror
from tests.harness.prompts import Tokens, interleaved
from tests.harness.scheduler import settings_with

LOAD = {"chunked_prefill_size": 256, "max_running_requests": 4}


def change(harness, **texts):
    return send(harness, to_wire(texts))


def send(harness, server_args):
    request = io_struct.SetInternalStateReq(server_args=server_args)
    answer = harness.scheduler.set_internal_state(request)
    assert request.server_args == server_args  # it goes on to the next stage of a pipeline
    return answer.updated


@pytest.fixture
def harness(start):
    harness = start(**LOAD)
    harness.reconfigure("feather", order="held")
    return harness


def fill(harness, new=8):
    rids = harness.send_all(interleaved(Tokens().families(3, 5, 192, 40)), new=new)
    for _ in range(4):
        harness.step()
    return rids


def test_another_order_keeps_ages_counts_and_requests(harness):
    rids = fill(harness)
    adapter = harness.scheduler.feather
    before, state = adapter.core, harness.state()["feather"]
    ages = {t.req.rid: t.arrival for t in adapter.book.waiting.values()}
    assert change(harness, order="missing", aging="0.5", barrier_min="128")
    check_mirror(harness)
    assert adapter.core is not before
    assert {t.req.rid: t.arrival for t in adapter.book.waiting.values()} == ages
    after = harness.state()["feather"]
    assert (after["order"], after["aging"], after["barrier_min"]) == ("missing", 0.5, 128)
    kept = ("waiting", "running", "admitted", "barrier_waits", "scheduled_tokens", "oldest_tokens")
    assert {name: after[name] for name in kept} == {name: state[name] for name in kept}
    while not harness.is_idle():
        harness.step()
        check_mirror(harness)
    assert set(harness.log.finished) == set(rids)
    assert adapter.failures == 0


def test_the_new_order_is_at_work(harness):
    """Of two families in the queue the old order takes the older one first, the new one the shorter."""

    def admitted(order):
        harness.fresh()
        tokens = Tokens()
        harness.send(tokens.take(600), new=2)
        harness.step()
        assert change(harness, order=order, aging="0")
        long = [harness.send(tokens.take(900), rid=f"long{i}", new=2) for i in range(2)]
        short = [harness.send(tokens.take(100), rid=f"short{i}", new=2) for i in range(2)]
        order_of_admission = [rid for rid in harness.run().admitted if rid in (*long, *short)]
        return order_of_admission.index("short0") < order_of_admission.index("long0")

    assert not admitted("held")
    assert admitted("missing")


def test_another_gate_keeps_the_index(harness):
    rids = fill(harness)
    adapter = harness.scheduler.feather
    before = adapter.core
    assert change(harness, gate="static")
    assert adapter.core is before
    assert (before.gate.name, harness.state()["feather"]["gate"]) == ("static", "static")
    harness.run()
    check_mirror(harness)
    assert set(harness.log.finished) == set(rids)
    assert change(harness, gate="never")
    assert before.gate.name == "never"


@pytest.mark.parametrize(
    ("server_args", "part"),
    [
        ({"feather_gate.foo": 1}, "gate is 'foo'; expected one of never, static"),
        ({"feather_aging": -1.0}, "aging -1.0: expected a number of at least 0"),
        ({"feather_barrier_min": 1.5}, "barrier_min is '1.5'; expected a whole number of tokens"),
        ({"feather_chunk_size": 128}, "chunk_size cannot be changed while the server runs; expected order, gate"),
        ({"feather_order.missing": 1, "feather_aging": -1.0}, "aging -1.0"),
        ({"feather_order.missing": 1, "feather_max_wait": -1.0}, "max_wait is -1.0; expected a number of seconds"),
        ({"feather_order.missing": 1, "no_such_thing": 1}, None),
        ({"feather_order.missing": 1, "pp_max_micro_batch_size": -1}, None),
    ],
)
def test_a_bad_change_changes_nothing(harness, caplog, server_args, part):
    adapter = harness.scheduler.feather
    before, core = adapter.settings, adapter.core
    assert not send(harness, server_args)
    assert adapter.settings == before
    assert adapter.core is core
    if part is not None:
        lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("feather: not changed: ")]
        assert len(lines) == 1
        assert part in lines[0]


def test_changes_of_sglang_go_through_alone_and_together(harness):
    assert send(harness, {"pp_max_micro_batch_size": 2})
    assert send(harness, {"pp_max_micro_batch_size": 3, "feather_order.missing": 1})
    assert harness.state()["pp_max_micro_batch_size"] == 3
    assert harness.state()["feather"]["order"] == "missing"


def test_where_the_policy_is_not_at_work_nothing_of_it_changes(harness, caplog):
    harness.reconfigure("fcfs")
    assert not change(harness, gate="static", max_wait="3")
    assert "the policy is not at work" in caplog.text
    harness.reconfigure("feather")
    harness.scheduler.feather.fallen = "Panic"
    assert not change(harness, gate="static")
    harness.scheduler.feather.fallen = None


def test_the_policy_off_and_on_again(harness):
    """While it is off what waits is served in the order of its arrival; its clock and its counts go on."""
    rids = fill(harness)
    adapter = harness.scheduler.feather
    before = harness.state()["feather"]
    assert change(harness, policy="fcfs")
    state = harness.state()["feather"]
    assert (state["policy"], "switched off" in state["reason"]) == ("fcfs", True)
    assert not change(harness, gate="static"), "first it must be on"
    waiting = [req.rid for req in harness.queue]
    admitted = len(harness.log.admitted)
    for _ in range(12):
        harness.step()
    served = harness.log.admitted[admitted:]
    assert served == waiting[: len(served)]
    assert 0 < len(served) < len(waiting)

    assert change(harness, policy="feather", order="missing")
    check_mirror_of_the_queue(harness)
    after = harness.state()["feather"]
    assert (after["policy"], after["order"], after["running"]) == ("feather", "missing", 0)
    assert after["waiting"] == len(harness.queue) > 0
    assert after["admitted"] == before["admitted"]
    assert after["scheduled_tokens"] == before["scheduled_tokens"]
    harness.run()
    check_mirror(harness)
    assert set(harness.log.finished) == set(rids)
    assert (adapter.failures, adapter.fallen) == (0, None)
    assert change(harness, policy="feather"), "it is on already"


def test_switched_on_while_a_prompt_goes_on_that_was_begun_without_it(start):
    """Whoever is admitted beside the chunks of that prompt is known to the policy all the same."""
    harness = start(chunked_prefill_size=256, max_running_requests=4)
    harness.reconfigure("feather", order="held")
    tokens = Tokens()
    assert change(harness, policy="fcfs")
    long = harness.send(tokens.take(256 + 40), new=4)
    harness.step()
    assert change(harness, policy="feather")
    beside = [harness.send(tokens.take(100), new=4) for _ in range(2)]
    harness.step()
    assert harness.log.batches[-1].rids == (long, *beside)
    check_mirror(harness, strangers=[long])
    harness.run()
    check_mirror(harness)
    assert harness.state()["feather"]["admitted"] == 2


def check_mirror_of_the_queue(harness):
    """Rows that were admitted without the policy are not its own."""
    adapter = harness.scheduler.feather
    assert sorted(t.req.rid for t in adapter.book.waiting.values()) == sorted(req.rid for req in harness.queue)
    adapter.core.check_integrity()


def test_there_and_back_on_the_wire(harness):
    texts = {"gate": "static", "order": "missing", "aging": "0.02", "barrier_min": "128", "max_wait": "90"}
    ours, rest = of_wire({**to_wire(texts), "other": 3})
    assert (ours, rest) == (texts, {"other": 3})
    settings, max_wait, policy = changed(settings_with(harness.scheduler), ours)
    assert (max_wait, policy) == (90, None)
    assert (settings.gate, settings.order, settings.aging, settings.barrier_min) == ("static", "missing", 0.02, 128)


def test_what_a_person_gives_is_checked_in_the_same_words():
    with pytest.raises(OptionError, match="gate is 'foo'; expected one of never"):
        to_wire({"gate": "foo"})
    with pytest.raises(OptionError, match="max_wiat cannot be changed while the server runs"):
        to_wire({"max_wiat": "3"})
