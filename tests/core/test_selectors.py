"""Which rows decode together: the densest lengths, where the longest row matters; nobody sits out for ever."""

from __future__ import annotations

import random

import pytest

from feather_sglang.core.interface import Limits, Resident, Step, View
from feather_sglang.core.selectors.aligned import GAIN, PATIENCE, RUN, Aligned
from feather_sglang.core.selectors.cost import WARM, Cost, StepCost
from feather_sglang.core.selectors.families import TURN, Families
from feather_sglang.core.selectors.lengths import LONGEST, around, densest

ROOM = Limits(kv_tokens=1 << 20, rows=0, prefill_tokens=0, may_choose_rows=True)


def view_of(rows: list[Resident], order: list[int] | None = None, shared: list[int] | None = None) -> View:
    order = [row.id for row in rows] if order is None else order
    return View(order, shared or [0] * len(order), 0, 0, 0, 0, 0, residents=rows)


def regions() -> list[tuple[int, int]]:
    """Every region of the tree, smallest first, by its definition: quarters of quarters."""
    found = []
    size = LONGEST
    while size:
        found += [(first, first + size - 1) for first in range(1, LONGEST + 1, size)]
        size //= 4
    return sorted(found, key=lambda region: (region[1] - region[0], region))


ALL_REGIONS = [region for region in regions() if region[1] - region[0] >= 15]
"""Without the 80,000 smallest, which ``test_single_lengths`` looks at."""


def brute_force(lengths: list[int], least: int) -> tuple[int, int]:
    def count(region: tuple[int, int]) -> int:
        return sum(region[0] <= min(length, LONGEST) <= region[1] for length in lengths)

    full = [(region[1] - region[0], -count(region), region) for region in ALL_REGIONS if count(region) >= least]
    return min(full)[2] if full else (1, LONGEST)


@pytest.mark.parametrize("seed", range(12))
def test_densest_is_what_the_tree_says(seed):
    draw = random.Random(seed)
    centres = [draw.randrange(1, 70_000) for _ in range(4)]
    lengths = [max(1, int(draw.gauss(draw.choice(centres), draw.choice([30, 400, 5_000])))) for _ in range(60)]
    lengths = [length // 16 * 16 + 1 for length in lengths]  # in one quarter of the smallest region that is looked at
    for least in (17, 36, 61):
        if max(lengths.count(length) for length in lengths) >= least:
            continue
        found = densest(lengths, least)
        if found[1] - found[0] >= 15:
            assert found == brute_force(lengths, least)
        inside = around(lengths[0], lengths, least)
        assert inside[0] <= min(lengths[0], LONGEST) <= inside[1]


def test_single_lengths():
    assert densest([5, 5, 5, 9, 9, 9, 9], 3) == (9, 9), "the fullest"
    assert densest([5, 5, 5, 9, 9, 9], 3) == (5, 5), "the shortest"
    assert densest([5, 6, 7, 8], 4) == (5, 8)
    assert densest([8, 9], 2) == (1, 16)
    assert densest([1, 90_000], 2) == (1, LONGEST)
    assert densest([], 1) == (1, LONGEST)


def steps(cost: Cost, count: int, seed: int = 0, noise: float = 0.02) -> list[Step]:
    draw = random.Random(seed)
    found = []
    for seq in range(count):
        rows = [draw.choice([200, 400, 400, 6_000]) + draw.randrange(200) for _ in range(draw.randrange(4, 60))]
        exact = cost.step + cost.row * len(rows) + cost.token * sum(rows) + cost.longest * max(rows)
        seconds = exact * (1 + draw.gauss(0, noise))
        found.append(Step(seq, "decode", seconds, len(rows), len(rows), sum(rows), sum(rows), max(rows)))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_row_is_found_to_matter_only_where_it_does(seed):
    sums, longest = StepCost(), StepCost()
    for step in steps(Cost(0.02, 1e-4, 2e-7, 0), 600, seed):
        sums.observe(step)
    for step in steps(Cost(0.02, 1e-4, 2e-8, 4e-6), 600, seed):
        longest.observe(step)
    assert sums.solve().longest == 0
    assert longest.solve().longest == pytest.approx(4e-6, rel=0.2)


def aligned(cost: Cost, rows: int = 8, tokens: int = 100_000) -> Aligned:
    selector = Aligned(rows, tokens)
    for step in steps(cost, 4 * WARM):
        selector.observe(step)
    return selector


MATTERS = Cost(0.002, 1e-5, 1e-8, 1e-5)


def skewed(short: int, long: int) -> list[Resident]:
    return [Resident(id, 8_000 + id if id % 8 == 7 else 300 + id, 64) for id in range(short + long)]


def test_where_a_step_costs_the_sum_of_its_lengths_everybody_decodes():
    selector = aligned(Cost(0.02, 1e-4, 2e-7, 0))
    assert selector.select(view_of(skewed(28, 4)), ROOM) is None
    assert selector.state()["declined"] == 1
    assert Aligned(8, 100_000).select(view_of(skewed(28, 4)), ROOM) is None, "nothing is known yet"


def test_a_batch_of_similar_lengths():
    rows = skewed(28, 4)
    decode = aligned(MATTERS).select(view_of(rows), ROOM)
    chosen = [row for row in rows if row.id in decode.rows]
    assert len(chosen) >= 8
    assert max(row.length for row in chosen) < 1_024
    assert aligned(MATTERS, rows=40).select(view_of(rows), ROOM) is None, "too few to choose from"


def test_an_over_large_batch_is_split():
    rows = skewed(28, 4)
    decode = aligned(MATTERS, tokens=3_000).select(view_of(rows), ROOM)
    assert 8 <= len(decode.rows) < 28
    assert sum(row.length for row in rows if row.id in decode.rows) <= 3_000


def test_rows_of_its_lengths_take_free_places():
    selector = aligned(MATTERS)
    rows = skewed(28, 4)
    first = set(selector.select(view_of(rows), ROOM).rows)
    gone = sorted(first)[:3]
    rows = [row for row in rows if row.id not in gone] + [Resident(100, 310, 64), Resident(101, 9_000, 64)]
    assert set(selector.select(view_of(rows), ROOM).rows) == first - set(gone) | {100}
    assert selector.switches == 1


def test_nobody_sits_out_for_ever():
    selector = aligned(MATTERS)
    rows = skewed(56, 8)
    last = dict.fromkeys(range(64), 0)
    most = 0
    for step in range(6 * PATIENCE):
        decode = selector.select(view_of(rows), ROOM)
        for id in decode.rows if decode is not None else last:
            most = max(most, step - last[id])
            last[id] = step
        rows = [row._replace(length=row.length + (last[row.id] == step)) for row in rows]
    assert RUN < most <= PATIENCE + len(rows)
    assert selector.longest_wait <= PATIENCE + len(rows)
    assert selector.steps > PATIENCE


def test_no_switch_while_the_link_does_not_hide_it():
    def switches(link_tokens: int) -> int:
        selector = aligned(MATTERS, tokens=8 * 330)
        limits = Limits(1 << 20, 0, 0, link_tokens=link_tokens, may_choose_rows=True, may_park=True)
        rows = skewed(56, 8)
        for _ in range(RUN + 1):
            decode = selector.select(view_of(rows), limits)
            rows = [
                row._replace(parked=row.id not in decode.rows, length=row.length + 200 * (row.id in decode.rows))
                for row in rows
            ]
        return selector.switches

    assert switches(0) == 1
    assert switches(10**9) == 2


def test_families_in_turn():
    rows = [Resident(id, 500, 64) for id in range(9)]
    order, shared = [0, 3, 6, 1, 4, 7, 2, 5, 8], [0, 64, 64] * 3
    selector = Families()
    turns = [frozenset(selector.select(view_of(rows, order, shared), ROOM).rows) for _ in range(6 * TURN)]
    assert [turns[TURN * i] for i in range(3)] == [{0, 3, 6}, {1, 4, 7}, {2, 5, 8}]
    assert turns[: 3 * TURN] == turns[3 * TURN :]
    assert all(len(set(turns[i * TURN : (i + 1) * TURN])) == 1 for i in range(6))
    assert selector.select(view_of(rows[:3:3], [0], [0]), ROOM) is None


def test_the_gain_must_be_worth_it():
    nearly = Cost(0.02, 1e-5, 1e-8, GAIN * 1e-6)
    assert aligned(nearly).select(view_of(skewed(28, 4)), ROOM) is None
