"""The waiting queue: every change is seen, the plan is shown once, and the book is the queue after every step."""

from __future__ import annotations

import itertools

import pytest
import sglang.srt.managers.scheduler as scheduler_module

from feather_sglang.sglang.queue import WaitingQueue
from tests.harness.mirror import check_mirror
from tests.harness.prompts import Tokens, interleaved


class Listener:
    def __init__(self):
        self.events = []

    def entered(self, request):
        self.events.append(("in", request))

    def left(self, request):
        self.events.append(("out", request))


@pytest.mark.parametrize(
    ("change", "events", "rest"),
    [
        (lambda q: q.append(4), [("in", 4)], [1, 2, 3, 4]),
        (lambda q: q.extend([4, 5]), [("in", 4), ("in", 5)], [1, 2, 3, 4, 5]),
        (lambda q: q.__iadd__([4]), [("in", 4)], [1, 2, 3, 4]),
        (lambda q: q.insert(0, 4), [("in", 4)], [4, 1, 2, 3]),
        (lambda q: q.pop(), [("out", 3)], [1, 2]),
        (lambda q: q.pop(0), [("out", 1)], [2, 3]),
        (lambda q: q.remove(2), [("out", 2)], [1, 3]),
        (lambda q: q.__delitem__(0), [("out", 1)], [2, 3]),
        (lambda q: q.__delitem__(slice(0, 2)), [("out", 1), ("out", 2)], [3]),
        (lambda q: q.__setitem__(1, 4), [("out", 2), ("in", 4)], [1, 4, 3]),
        (lambda q: q.__setitem__(slice(None), [3, 1]), [("out", 2)], [3, 1]),
        (lambda q: q.clear(), [("out", 1), ("out", 2), ("out", 3)], []),
        (lambda q: q.sort(reverse=True), [], [3, 2, 1]),
        (lambda q: q.reverse(), [], [3, 2, 1]),
    ],
)
def test_every_change_is_reported(change, events, rest):
    listener = Listener()
    queue = WaitingQueue([1, 2, 3], listener)
    change(queue)
    assert listener.events == events
    assert queue == rest


def test_the_plan_is_shown_once():
    queue = WaitingQueue([1, 2, 3], Listener())
    queue.show(lambda: iter([2]))
    assert (len(queue), queue[0], queue[:2]) == (3, 1, [1, 2])
    assert list(queue) == [2]
    assert list(queue) == [1, 2, 3]
    queue.show(lambda: iter([2]))
    queue.show(None)
    assert list(queue) == [1, 2, 3]


SETTINGS = [
    {},
    {"overlap": False},
    {"page_size": 16, "chunked_prefill_size": 128, "enable_mixed_chunk": True},
]


def ids(settings):
    return ",".join(f"{k}={v}" for k, v in settings.items()) or "overlap"


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=ids)
class TestMirror:
    def test_arrivals_and_aborts_in_every_state(self, start, settings):
        harness = start(**settings)
        prompts = interleaved(Tokens().families(4, 8, 128, 150))
        seen = set()
        for step, prompt in enumerate(itertools.chain(prompts, [None] * 60)):
            if prompt is not None:
                harness.send(prompt, new=3 + step % 20)
            if step % 5 == 4:  # one of each kind in turn: the newest, the oldest running, the chunked one
                queue, scheduler = harness.queue, harness.scheduler
                chosen = [queue[-1:], scheduler.running_batch.reqs[:1], [scheduler.chunked_req]][step % 3]
                for req in filter(None, chosen):
                    seen.add(step % 3)
                    harness.abort(req.rid)
            harness.step()
            check_mirror(harness)
        harness.run()
        check_mirror(harness)
        assert seen >= ({0, 1, 2} if settings.get("chunked_prefill_size") else {0, 1})
        state = harness.state()["feather"]
        assert (state["waiting"], state["running"]) == (0, 0)

    def test_retraction(self, start, settings, monkeypatch):
        harness = start(**settings)
        monkeypatch.setattr(scheduler_module, "TEST_RETRACT", True)  # SGLang's own switch, read at its import
        rids = harness.send_all(interleaved(Tokens().families(3, 4, 100, 30)), new=24)
        while not harness.is_idle():
            harness.step()
            check_mirror(harness)
            if harness.log.passes > 400:
                monkeypatch.setattr(scheduler_module, "TEST_RETRACT", False)
        harness.run()
        assert set(harness.log.finished) == set(rids)

    @pytest.mark.parametrize("mode", ["retract", "in_place"])
    def test_pause_flush_and_resume(self, start, settings, mode):
        harness = start(**settings, max_running_requests=8)
        rids = harness.send_all(interleaved(Tokens().families(8, 8, 96, 24)), new=12)
        for _ in range(5):
            harness.step()
        harness.pause(mode)
        check_mirror(harness)
        assert harness.flush() is (mode == "retract")
        check_mirror(harness)
        harness.resume()
        while not harness.is_idle():
            harness.step()
            check_mirror(harness)
        assert set(harness.log.finished) == set(rids)


@pytest.mark.slow
def test_a_new_queue_is_compared_with_the_old(start):
    harness = start()
    rids = harness.send_all(interleaved(Tokens().families(2, 4, 64, 16)))
    scheduler = harness.scheduler
    scheduler.waiting_queue = [req for req in scheduler.waiting_queue if req.rid != rids[2]][::-1]
    check_mirror(harness)
    assert len(scheduler.waiting_queue) == 7
    harness.run()
    check_mirror(harness)
    assert set(harness.log.finished) == set(rids) - {rids[2]}


def test_a_request_aborted_in_the_queue_can_be_sent_again(start):
    """Scenario 10."""
    harness = start()
    prompt = Tokens().take(200)
    harness.send(prompt, rid="same")
    harness.abort("same")
    check_mirror(harness)
    harness.send(prompt, rid="same")
    harness.run()
    check_mirror(harness)
    state = harness.state()["feather"]
    assert (state["waiting"], state["running"]) == (0, 0)
    assert "same" in harness.log.finished
