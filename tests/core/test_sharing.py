"""The sharing plan against brute force, on random radix trees: ragged, nested, scattered over the batch."""

from __future__ import annotations

import random
from itertools import combinations, count, pairwise

import pytest

from feather_sglang.core.sharing import (
    FREE,
    GRAIN,
    Costs,
    Paths,
    SharingCache,
    in_batch_order,
    paths_from_slots,
    paths_of_rows,
    plan_sharing,
)

SEEDS = range(150)


def batch_of(draw, rows, longest=40):
    """Slots of rows as a radix cache gives them: a row continues another's slots from anywhere, then its own."""
    fresh = count(1)
    slots = []
    for _ in range(rows):
        prefix = []
        if slots and draw.random() < 0.8:
            prefix = draw.choice(slots)
            prefix = prefix[: draw.choice([len(prefix), draw.randint(0, len(prefix))])]
        slots.append(prefix + [next(fresh) for _ in range(draw.randint(0, longest))] or [next(fresh)])
    draw.shuffle(slots)
    return slots


def paths_of(slots):
    return paths_from_slots(lambda rows, k: [slots[row][k] for row in rows], [len(row) for row in slots])


def common(a, b):
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def gain_of(sharing, costs):
    """What a plan saves, by its own account of what it costs; reading every token that no range holds alone."""
    if not sharing.ranges:
        return 0
    return -costs.plan + sum(
        (len(r.rows) - 1) * (r.end - r.start) - costs.range - len(r.rows) * costs.row for r in sharing.ranges
    )


def best_gain(slots, costs):
    """The most that any plan could gain: every choice of nodes of the tree, each read from where its rows stand."""
    nodes = set()
    for a, b in combinations(range(len(slots)), 2):
        k = common(slots[a], slots[b])
        if k:
            nodes.add((k, frozenset(i for i, row in enumerate(slots) if common(row, slots[a]) >= k)))
    nodes = sorted(nodes, key=lambda node: (node[0], sorted(node[1])))
    best = 0
    for chosen in range(1 << len(nodes)):
        starts, level, gain = [0] * len(slots), [0] * len(slots), -costs.plan
        for bit, (end, rows) in enumerate(nodes):
            if chosen >> bit & 1:
                row = min(rows)
                gain += (len(rows) - 1) * (end - starts[row]) - costs.range - len(rows) * costs.row
                for each in rows:
                    starts[each], level[each] = end, level[each] + 1
        if max(level) <= costs.levels:
            best = max(best, gain)
    return best


@pytest.mark.parametrize("seed", SEEDS)
def test_paths_from_slots(seed):
    draw = random.Random(seed)
    slots = batch_of(draw, draw.randint(0, 12))
    order, shared = paths_of(slots)
    assert sorted(order) == list(range(len(slots)))
    for i, j in combinations(range(len(slots)), 2):
        assert min(shared[i + 1 : j + 1]) == common(slots[order[i]], slots[order[j]])
    assert not slots or shared[0] == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("costs", [FREE, Costs(plan=20, range=4, row=2), Costs(range=10, levels=1), Costs(levels=2)])
def test_what_is_planned_is_right_and_the_best(seed, costs):
    draw = random.Random(seed)
    slots = batch_of(draw, draw.randint(1, 7), longest=GRAIN // 2)
    sharing = plan_sharing(paths_of(slots), costs)
    read = [0] * len(slots)
    for each in sharing.ranges:
        assert len(each.rows) > 1
        assert list(each.rows) == sorted(each.rows)
        assert each.level < costs.levels
        held = {tuple(slots[row][each.start : each.end]) for row in each.rows}
        assert len(held) == 1
        assert len(held.pop()) == each.end - each.start > 0
        for row in each.rows:
            assert read[row] == each.start, "what its rows read leaves no gap"
            read[row] = each.end
    assert tuple(read) == sharing.tails
    assert sharing.saved == sum((len(r.rows) - 1) * (r.end - r.start) for r in sharing.ranges)
    longest = max(map(len, slots), default=0)
    if max(paths_of(slots).shared, default=0) < 2 * GRAIN:  # no two levels are too near to be told apart
        assert gain_of(sharing, costs) == pytest.approx(best_gain(slots, costs)), longest


@pytest.mark.parametrize("seed", SEEDS)
def test_adjacent_rows(seed):
    draw = random.Random(seed)
    slots = batch_of(draw, draw.randint(1, 12))
    order, shared = in_batch_order(paths_of(slots))
    assert list(order) == list(range(len(slots)))
    assert list(shared) == [0] + [common(a, b) for a, b in pairwise(slots)]
    assert all(each.adjacent for each in plan_sharing(Paths(order, shared)).ranges)


def test_levels_close_to_each_other_are_one():
    """A chain of nested prefixes: as many ranges as tell apart at most GRAIN levels, and little of the gain is lost."""
    prefix = list(range(1, 6401))
    slots = [[*prefix[: 64 * (i + 1)], 10_000 + i] for i in range(100)]
    costs = Costs(levels=100)
    sharing = plan_sharing(paths_of(slots), costs)
    assert sharing.levels <= GRAIN
    apart = sum(map(len, slots))
    assert sharing.saved >= 0.9 * (apart - len(prefix) - len(slots))


def test_work_to_find_what_is_shared():
    """Bisection: no more slots are looked at than rows x log2(length), for each level on which rows part."""
    families, members, length = 8, 12, 4096
    slots = [
        [*range(family * length, (family + 1) * length), 10**6 + family * 100 + member]
        for member in range(members)
        for family in range(families)
    ]
    looked = 0

    def column(rows, k):
        nonlocal looked
        looked += len(rows)
        return [slots[row][k] for row in rows]

    sharing = plan_sharing(paths_from_slots(column, [len(row) for row in slots]))
    assert len(sharing.ranges) == families
    assert looked <= len(slots) * (2 + 13)


def test_a_price_is_weighed_against_what_is_saved():
    """flashinfer#595: a prefix of 4,000 and 8 rows, 26 us with a cascade; without, 19 us for one KV head a rank, and 55
    us for 8. (2-byte KV, heads of 128; the bandwidth and the price of a launch are assumed.)"""
    paths = Paths(range(8), [0] + [4000] * 7)

    def sharing(kv_heads, rows=paths):
        kv_bytes = 2 * kv_heads * 128 * 2
        return plan_sharing(rows, Costs.of(kv_bytes=kv_bytes, bandwidth=2.0e12, plan=2e-5))

    assert sharing(1).ranges == ()
    assert sharing(1).tails == (0,) * 8
    assert [(each.rows, each.start, each.end) for each in sharing(8).ranges] == [(tuple(range(8)), 0, 4000)]
    assert sharing(8, Paths(range(8), [0] + [128] * 7)).ranges == (), "too short"
    assert sharing(8, Paths(range(2), [0, 1000])).ranges == (), "too few rows"


def test_rows_that_the_scheduler_knows():
    """Rows 0..3 of the batch are requests 10, 20, 30, 40; 99 runs elsewhere, and 77 is nobody the scheduler knows."""
    position = {10: 0, 20: 1, 30: 2, 40: 3, 77: 4}
    order, shared = (30, 99, 10, 20, 40), (0, 512, 256, 512, 0)
    paths = paths_of_rows(order, shared, position, [1000] * 5)
    assert paths == Paths([2, 0, 1, 3, 4], [0, 256, 512, 0, 0])
    assert [(r.rows, r.start, r.end) for r in plan_sharing(paths).ranges] == [((0, 1, 2), 0, 256), ((0, 1), 256, 512)]
    # Request 10 is still being computed: its family shares without it.
    assert paths_of_rows(order, shared, position, [64, 1000, 1000, 1000, 1000]) == Paths(
        [2, 1, 3, 0, 4], [0, 256, 0, 0, 0]
    )
    assert paths_of_rows((), (), {}, [5, 5]) == Paths([0, 1], [0, 0])


def test_a_row_that_is_given_out_again():
    """The plan belongs to requests, not to the indices of their rows: a generation tells them apart."""
    cache = SharingCache(FREE)
    together, alone = Paths([0, 1], [0, 64]), Paths([0, 1], [0, 0])
    first = cache.plan(((3, 4), (1, 1)), lambda: together)
    assert cache.plan(((3, 4), (1, 1)), lambda: alone) is first
    assert cache.plan(((3, 4), (1, 2)), lambda: alone).ranges == ()
    assert (cache.made, cache.used) == (2, 3)
