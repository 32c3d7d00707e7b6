"""A short soak; ``make soak`` runs as many requests as one likes. And the soak itself: what it is for, it finds."""

from __future__ import annotations

import pytest

from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.sglang.adapter import Adapter
from tests.harness import pool
from tests.soak import script as a
from tests.soak.draw import draw
from tests.soak.episode import Episode
from tests.soak.shards import EPISODE
from tests.soak.shrink import failure_of, shrink

SWITCHES = 15
"""An episode in which the policy is switched off and on."""
EPISODES = 14
"""Of ``EPISODE`` requests each: 2,100."""


@pytest.fixture(autouse=True)
def _alone():
    pool.discard()
    yield
    pool.discard()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, EPISODES + 1))
def test_an_episode_of_chaos(seed):
    counts = Episode(draw(seed, EPISODE)).run()
    assert counts["sent"] == EPISODE
    assert counts["episodes"] == 1


def test_an_episode_is_the_same_each_time():
    runs = [Episode(draw(21, 30)).run() for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_script_that_was_written_is_the_one_that_is_read(tmp_path):
    script = draw(3, 60)
    script.write(tmp_path / "script")
    assert a.read(tmp_path / "script") == script
    assert all(script.tokens(number) for number in script.prompts)
    one = script.with_actions([action for action in script.actions if isinstance(action, a.Send)][-1:])
    assert one.tokens(59) == script.tokens(59)
    assert len(one.prompts) < len(script.prompts)


def lose_one(monkeypatch):
    """A queue that is replaced loses its last request, and so does the policy's record."""
    adopt = Adapter.adopt

    def adopted(adapter, requests):
        queue = adopt(adapter, requests)
        if len(queue) > 3:
            queue.pop()
        return queue

    monkeypatch.setattr(Adapter, "adopt", adopted)


def forget_one(monkeypatch):
    """The index never hears of some requests, so nobody names them."""
    enqueue = SchedulerCore.enqueue

    def enqueued(core, request):
        if request.id % 5 != 4:
            enqueue(core, request)

    monkeypatch.setattr(SchedulerCore, "enqueue", enqueued)


def forget_who_came_meanwhile(monkeypatch):
    """Switched on again, the policy does not hear of those that came while it was off."""
    switch = Adapter.switch

    def switched(adapter, *, on):
        if on:
            monkeypatch.setattr(Adapter, "compare", lambda adapter, requests: None)
        switch(adapter, on=on)

    monkeypatch.setattr(Adapter, "switch", switched)


def admit_twice(monkeypatch):
    """The first of a plan is offered twice."""
    candidates = Adapter.candidates

    def offered(adapter, queue):
        for number, req in enumerate(candidates(adapter, queue)):
            yield req
            if number == 0:
                yield req

    monkeypatch.setattr(Adapter, "candidates", offered)


@pytest.mark.parametrize(
    ("plant", "part"),
    [
        (lose_one, "lost: "),
        (forget_one, "the index"),
        (admit_twice, "twice in a batch"),
        (forget_who_came_meanwhile, "the policy knows []"),
    ],
    ids=["lost", "forgotten", "admitted twice", "came while it was off"],
)
def test_it_finds_what_it_is_for(monkeypatch, plant, part):
    plant(monkeypatch)
    assert part in (failure_of(draw(SWITCHES, 60)) or "")


def test_a_failing_script_is_cut_down(monkeypatch):
    admit_twice(monkeypatch)
    short = shrink(draw(1, 60), seconds=60)
    assert failure_of(short, fresh=True) is not None
    assert len(short.actions) <= 3
    monkeypatch.undo()
    assert failure_of(short, fresh=True) is None
