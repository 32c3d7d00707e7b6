"""The rules of the scheduler core, without an engine. That the index keeps them on any sequence of operations is shown
against the naive model (``cht-rs/tests/model.rs``); here each is stated once, in numbers."""

from __future__ import annotations

from array import array

import pytest

from feather_sglang.core.interface import Limits, Phase, Request, Row
from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.core.settings import Settings

PLENTY = 1 << 30


def limits(**changes):
    return Limits(**({"kv_tokens": PLENTY, "rows": 100, "prefill_tokens": PLENTY} | changes))


class Engine:
    """Drives a core as an engine would; every prompt is a prefix (by name) and tokens of its own.

    Its order is ``held`` unless another is named: what comes next is then plain from the arrivals.
    """

    def __init__(self, order="held", **settings):
        self.core = SchedulerCore(Settings(order=order, **settings))
        self.alive = []
        self.sent = 0

    def send(self, *parts, reserve=0, arrived=None, **fields):
        """``parts``: (name, tokens) pairs; equal names give equal tokens."""
        tokens = array("q")
        for name, length in parts:
            tokens.extend([hash_free(name)] * length)
        id = self.sent
        self.sent += 1
        arrival = (self.core.scheduled_tokens if arrived is None else arrived, id)
        self.core.enqueue(
            Request(id=id, tokens=[tokens], length=len(tokens), arrival=arrival, reserve=reserve, **fields)
        )
        return id

    def plan(self, changed=(), **spend):
        self.core.begin(changed, self.alive)
        return self.core.plan_admissions(limits(**spend))

    def admit(self, plan, reused=0, refused=()):
        ids = [c.id for c in plan.order if c.id not in refused]
        self.core.settle(dict.fromkeys(ids, reused), dict.fromkeys(refused, "no"))
        self.alive += ids
        return ids

    def ids(self, changed=(), **spend):
        return [c.id for c in self.plan(changed, **spend).order]

    def finish(self, id, produced=1):
        self.alive.remove(id)
        self.core.leave(id, produced)


def hash_free(name):
    """A token for a name, equal in every process."""
    return int.from_bytes(name.encode(), "little")


def done(id, published):
    return Row(id, Phase.DECODING, published)


def test_without_sharing_it_is_fcfs():
    engine = Engine()
    sent = [engine.send((f"p{i}", 100 + 50 * (i % 3))) for i in range(9)]
    assert engine.ids() == sent


def test_an_open_family_is_served_first_then_the_oldest():
    engine = Engine()
    leader = engine.send(("a", 512), ("x", 10))
    engine.admit(engine.plan())
    other, sibling = engine.send(("b", 512)), engine.send(("a", 512), ("y", 10))
    assert engine.ids([done(leader, 512)]) == [sibling, other]


def test_the_order_missing_opens_the_smallest_first():
    engine = Engine(order="missing", aging=0.0)
    large, small = engine.send(("a", 900)), engine.send(("b", 300))
    assert engine.ids() == [small, large]
    aged = Engine(order="missing", aging=1.0)
    old, new = aged.send(("a", 900), arrived=0), aged.send(("b", 300), arrived=601)
    assert aged.ids() == [old, new], "ageing gives the older one 601 tokens"


def test_without_ageing_age_breaks_ties_only():
    """Scenario 1: ``aging=0`` is the unaged order exactly, however old a request is."""
    engine = Engine(order="missing", aging=0.0)
    lengths = [900, 300, 500, 300, 1200, 500, 64, 900]
    sent = [engine.send((f"p{i}", length), arrived=100_000 * i) for i, length in enumerate(lengths)]
    assert engine.ids() == sorted(sent, key=lambda id: (lengths[id], id))


def test_siblings_wait_for_their_leader_and_hit():
    engine = Engine()
    family = [engine.send(("a", 512), (f"own{i}", 10)) for i in range(3)]
    other = engine.send(("b", 512))
    plan = engine.plan()
    assert [c.id for c in plan.order] == [family[0], other]
    assert (plan.held, plan.kept) == (2, 2)
    engine.admit(plan)
    assert engine.ids() == [], "still being computed"
    plan = engine.plan([done(family[0], 512)])
    assert [(c.id, c.uncomputed) for c in plan.order] == [(family[1], 10), (family[2], 10)]


def test_a_short_prefix_is_waited_for_only_where_it_is_a_quarter():
    engine = Engine()
    engine.send(("a", 64), ("leader", 1000))
    long = engine.send(("a", 64), ("long", 1000))
    short = engine.send(("a", 64), ("short", 150))
    plan = engine.plan()
    assert long in [c.id for c in plan.order]
    assert short not in [c.id for c in plan.order]
    assert plan.held == 1


def test_a_tail_shorter_than_a_chunk_is_not_waited_for():
    engine = Engine()
    both = [engine.send(("a", 63), (f"own{i}", 5)) for i in range(2)]
    assert engine.ids() == both


def test_what_will_not_be_published_is_not_waited_for():
    engine = Engine()
    both = [engine.send(("a", 512), (f"own{i}", 5), leads=False) for i in range(2)]
    assert engine.ids() == both
    apart = Engine()
    both = [apart.send(("a", 512), shareable=0) for i in range(2)]
    assert apart.ids() == both


@pytest.mark.parametrize("how", ["aborted", "retracted", "refused"])
def test_when_the_leader_goes_the_next_one_leads(how):
    engine = Engine()
    first, second, *_ = (engine.send(("a", 512), (f"own{i}", 10)) for i in range(3))
    plan = engine.plan()
    if how == "refused":
        engine.admit(plan, refused=[first])
        assert engine.ids() == [second], "the refused one stands back for a pass, and nobody waits for it"
        return
    engine.admit(plan)
    engine.alive.remove(first)
    if how == "aborted":
        engine.core.leave(first, None)
        assert engine.ids() == [second]
    else:
        tokens = array("q", [hash_free("a")] * 512 + [hash_free("own0")] * 10 + [5] * 30)
        engine.core.enqueue(Request(id=first, tokens=[tokens], length=552, arrival=(0, first)))
        assert len(engine.ids()) == 1


def test_a_leader_that_shares_deepest():
    engine = Engine()
    nested = [engine.send(*[(f"level{i}", 256) for i in range(n)]) for n in range(1, 6)]
    assert engine.ids()[0] == nested[3], "the longest path that two share: that of the fourth and the fifth"


def test_held_requests_keep_rows_for_two_passes():
    engine = Engine()
    family = [engine.send(("a", 512), (f"own{i}", 10)) for i in range(4)]
    other = engine.send(("b", 512))
    plan = engine.plan(rows=4)
    assert [c.id for c in plan.order] == [family[0]]
    assert (plan.held, plan.kept, plan.stop) == (3, 3, "kept")
    engine.admit(plan)
    assert engine.ids(rows=3) == []
    assert engine.ids(rows=3) == [other], "after two passes the rows are free for all"


def test_kv_is_kept_too():
    engine = Engine()
    leader = engine.send(("a", 512), ("x", 10))
    engine.send(("a", 512), ("y", 10), reserve=500)
    other = engine.send(("b", 600))
    assert engine.ids(kv_tokens=522 + 600) == [leader]
    assert engine.ids(kv_tokens=522 + 600 + 510) == [leader, other]


def test_what_does_not_fit_is_looked_past_and_has_its_turn():
    engine = Engine(max_wait_tokens=1000)
    big, small = engine.send(("big", 5000), reserve=10), engine.send(("small", 100))
    plan = engine.plan(kv_tokens=3000)
    assert ([c.id for c in plan.order], plan.skipped) == ([small], 1)
    engine.admit(plan)
    engine.core._scheduled = 2000
    engine.send(("late", 100))
    plan = engine.plan(kv_tokens=3000)
    assert (plan.order, plan.stop) == ([], "room")
    assert engine.ids(kv_tokens=6000)[0] == big


def test_looking_goes_on_where_it_ended():
    engine = Engine()
    for i in range(100):
        engine.send((f"big{i}", 5000))
    small = engine.send(("small", 100))
    first = engine.plan(kv_tokens=1000)
    assert (first.order, first.stop) == ([], "looked")
    assert engine.ids(kv_tokens=1000) == [small]
    engine.core.settle({}, {})
    assert engine.ids(kv_tokens=1000, idle=True) == [small], "an idle engine looks at all"


def test_fit_counts_what_no_row_holds_and_budget_what_is_not_computed():
    """vllm#7883: cached is computed, but not held."""
    engine = Engine()
    first = engine.send(("a", 640), ("x", 10))
    engine.admit(engine.plan())
    engine.plan([done(first, 650)])
    engine.finish(first)
    again = engine.send(("a", 640), ("y", 20), reserve=40)
    (candidate,) = engine.plan(kv_tokens=700, prefill_tokens=50).order
    assert (candidate.id, candidate.uncomputed, candidate.add_distinct) == (again, 20, 660)
    assert engine.ids(kv_tokens=699) == []


def test_a_cache_that_lost_more_than_was_remembered():
    engine = Engine()
    first = engine.send(("a", 640), ("x", 10))
    engine.admit(engine.plan())
    engine.plan([done(first, 650)])
    engine.finish(first)
    leader, sibling = (engine.send(("a", 640), (f"own{i}", 10)) for i in range(2))
    plan = engine.plan()
    assert [c.id for c in plan.order] == [leader, sibling], "it is believed to be cached"
    engine.core.settle({leader: 64}, {})
    engine.alive.append(leader)
    assert engine.ids() == [], "the match found less: the rest is being computed"
    assert engine.ids([done(leader, 640)]) == [sibling]


def test_nobody_waits_past_the_bound():
    engine = Engine(max_wait_tokens=1000)
    leader = engine.send(("a", 512), ("x", 10))
    engine.admit(engine.plan())
    sibling = engine.send(("a", 512), ("y", 10))
    assert engine.ids() == []
    engine.core._scheduled += 2000
    assert engine.ids() == [sibling], "held back longer than the bound: held no more"
    assert leader in engine.alive


@pytest.mark.parametrize("order", ["held", "missing"])
def test_past_the_bound_those_who_came_together_go_by_the_order(order):
    """A burst that takes longer than the bound still shares; who came later does not go before it."""
    engine = Engine(order, aging=0.0, max_wait_tokens=80_000)
    row = engine.send(("a", 1024), ("x", 10), arrived=0)
    engine.admit(engine.plan(idle=True))
    engine.ids([done(row, 1034)])
    oldest = engine.send(("b", 1024), arrived=0)
    together = engine.send(("a", 1024), ("y", 10), arrived=10_000)
    engine.send(("a", 1024), ("z", 10), arrived=10_001)
    engine.core._scheduled = 70_000
    assert engine.ids(rows=1) == [together], "of an open family"
    engine.core._scheduled = 75_000
    plan = engine.plan(rows=2)
    assert [c.id for c in plan.order] == [together, oldest]


def test_past_the_bound_one_that_came_later_goes_before_nobody():
    engine = Engine("missing", aging=0.0, max_wait_tokens=80_000)
    row = engine.send(("a", 1024), ("x", 10), arrived=0)
    engine.admit(engine.plan(idle=True))
    engine.ids([done(row, 1034)])
    oldest = engine.send(("b", 1024), arrived=0)
    later = engine.send(("a", 1024), ("z", 10), arrived=10_001)
    engine.core._scheduled = 69_999  # one row is one token in each pass
    assert engine.ids(rows=1) == [later], "not yet past seven eighths of it"
    assert engine.ids(rows=1) == [oldest]
    engine.admit(engine.plan(rows=1))
    assert engine.ids(rows=1) == [later]


def test_room_is_kept_from_those_who_came_later_only():
    """The oldest does not fit: of the others, only those who came together with it may use what is free."""
    engine = Engine(max_wait_tokens=80_000, kv_capacity=20_000)
    row = engine.send(("a", 1024), ("x", 10), arrived=0)
    engine.admit(engine.plan(idle=True))
    engine.ids([done(row, 1034)])
    engine.send(("b", 10_000), arrived=0)
    together = engine.send(("a", 1024), ("y", 10), arrived=9_000)
    engine.core._scheduled = 75_000
    assert engine.ids(kv_tokens=2_000) == [together]
    engine.core.leave(together, None)
    engine.send(("a", 1024), ("z", 10), arrived=11_000)
    plan = engine.plan(kv_tokens=2_000)
    assert ([c.id for c in plan.order], plan.stop) == ([], "room")


def test_another_bound_holds_from_the_next_pass_on():
    engine = Engine(max_wait_tokens=PLENTY)
    engine.send(("a", 512), ("x", 10))
    engine.admit(engine.plan())
    sibling = engine.send(("a", 512), ("y", 10))
    engine.core._scheduled += 2000
    assert engine.ids() == []
    engine.core.bound_waits(1000)
    assert engine.ids() == [sibling]


def test_the_digest_tells_whether_two_made_the_same_decisions():
    def digest(*parts, reused=0):
        engine = Engine()
        for part in parts:
            engine.send(part)
        engine.admit(engine.plan(), reused)
        return engine.core.decisions

    assert digest(("a", 100), ("b", 100)) == digest(("a", 100), ("b", 100))
    assert digest(("a", 100), ("b", 100))[0] == 2
    assert digest(("a", 100), ("b", 100)) != digest(("a", 100), ("b", 100), reused=64)
    assert digest() == (0, 0)


def test_an_idle_engine_is_given_somebody():
    engine = Engine(gate="static")
    huge = engine.send(("huge", 5000))
    assert engine.ids(kv_tokens=100) == []
    assert engine.ids(kv_tokens=100, idle=True) == [huge], "the engine admits or reports it"


def test_a_gate_leaves_out_nobody_past_the_bound():
    engine = Engine(gate="static", max_wait_tokens=1000)
    first = engine.send(("a", 1024), ("x", 10))
    engine.admit(engine.plan(idle=True))
    engine.plan([done(first, 1034)])
    engine.core.gate.floor = 1
    strangers = [engine.send((name, 1024)) for name in "bcd"]
    assert engine.ids() == []
    engine.core._scheduled += 2000
    told, static = [], engine.core.gate.cut
    engine.core.gate.cut = lambda view, candidates: told.append(view.overdue) or static(view, candidates)
    assert engine.ids() == strangers
    assert told == [3], "it knows"


def test_a_gate_stops_for_one_pass():
    engine = Engine(gate="static")
    first = engine.send(("a", 1024), ("x", 10))
    engine.admit(engine.plan(idle=True))
    engine.plan([done(first, 1034)])
    engine.core.gate.floor = 1
    other = engine.send(("b", 1024))
    plan = engine.plan()
    assert (plan.order, plan.stop) == ([], "gate static")
    assert engine.ids(may_stop=False) == [other]
    assert engine.core.state()["stops"] == 1
    engine.core.check_integrity()


def test_a_lost_event_heals_in_a_pass():
    engine = Engine()
    first, second = engine.send(("a", 512)), engine.send(("b", 512))
    engine.alive = [second]  # the engine runs one that was never planned
    engine.plan([done(second, 512)])
    engine.core.settle({}, {})
    assert engine.core.state()["running"] == 1
    engine.alive = []
    assert engine.ids() == [first]
    engine.core.check_integrity()


def test_departures_are_idempotent_and_unknown_ids_change_nothing():
    engine = Engine()
    first = engine.send(("a", 512))
    engine.admit(engine.plan())
    engine.finish(first)
    before = engine.core.state()
    engine.core.leave(first, 3)
    engine.core.leave(999, None)
    assert engine.core.state() == before
    engine.core.enqueue(Request(id=7, tokens=[[1, 2]], length=2, arrival=(0, 7)))
    with pytest.raises(ValueError, match="id 7"):
        engine.core.enqueue(Request(id=7, tokens=[[1, 2]], length=2, arrival=(0, 8)))


def test_output_becomes_cached_when_a_request_finishes():
    """The next turn of a conversation: prompt and answer of the last one are not computed again."""
    engine = Engine()
    first = engine.send(("a", 256))
    engine.admit(engine.plan())
    engine.plan([done(first, 256)])
    engine.core.begin([Row(first, Phase.DECODING, 256, grown=array("q", [9] * 128))], engine.alive)
    engine.finish(first, 128)
    tokens = array("q", [hash_free("a")] * 256 + [9] * 128 + [4] * 20)
    engine.core.enqueue(Request(id=50, tokens=[tokens], length=404, arrival=(0, 50)))
    (candidate,) = engine.plan().order
    assert candidate.uncomputed == 20
    engine.core.settle({}, {})
    engine.core.forget()
    assert engine.plan().order[0].uncomputed == 404


def test_held_requests_cost_a_pass_nothing():
    """Counted work, not time: 10,000 requests held back, at most twice the work of none."""

    def work(held):
        engine = Engine()
        leader = engine.send(("a", 512), ("x", 10))
        engine.admit(engine.plan())
        for i in range(held):
            engine.send(("a", 512), (f"held{i}", 10))
        for i in range(100):
            engine.send((f"free{i}", 300))
        before = engine.core._index.stats()
        plan = engine.plan(rows=10_200)
        after = engine.core._index.stats()
        assert (plan.held, len(plan.order)) == (held, 100)
        assert leader in engine.alive
        return sum(after[name] - before[name] for name in ("queue_operations", "nodes_visited", "looked_at"))

    assert work(10_000) <= 2 * work(0)


def test_rows_are_sorted_by_family():
    engine = Engine()
    ids = [engine.send((f"f{i % 2}", 512), (f"own{i}", 10)) for i in range(6)]
    for _ in range(2):
        engine.admit(engine.plan([done(id, 512) for id in engine.alive]), reused=0)
    engine.plan([done(id, 512) for id in engine.alive])
    rows = engine.core.plan_decode(limits()).rows
    assert sorted(rows) == ids
    families = [ids.index(id) % 2 for id in rows]
    assert families in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
    assert engine.core.view().shared.count(512) == 4


def test_shared_tokens_are_those_of_the_rows_that_count():
    engine = Engine(barrier=False)
    prompts = [[("a", 128), ("b", 64), (f"own{n}", 64)] for n in range(3)] + [[("a", 128), ("c", 64)]]
    rows = [engine.send(*prompt) for prompt in prompts]
    engine.admit(engine.plan())
    engine.plan([Row(id, Phase.DECODING, sum(tokens for _, tokens in prompts[id])) for id in rows])
    shared = engine.core.shared_kv
    assert shared() == shared(set(rows)) == 192 + 192 + 128
    assert [shared({rows[0], row}) for row in rows[1:]] == [192, 192, 128]
    assert shared({rows[0], rows[1], rows[3]}) == 192 + 128
    assert (shared({rows[2]}), shared(set())) == (0, 0)
