"""Which rows of a decode batch read which KV together, so that attention reads it once for all of them.

Rows are positions in the batch *as it is*. What they share is given as ``Paths``, by the scheduler, which knows the
prefixes, or by the KV slots of the rows themselves. ``plan_sharing`` weighs every shared range against what it costs to
read it apart from the rest (Hydragen, arXiv:2402.05099; FlashInfer's cascades), so that a batch that shares nothing
worth its price gets an empty plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

GRAIN = 16
"""Shared ranges shorter than 1 / GRAIN of the longest are not told apart from the next ones: at most GRAIN levels."""


class Paths(NamedTuple):
    """Rows by what they share: a radix tree, read depth-first."""

    order: Sequence[int]
    """Rows, siblings adjacent."""
    shared: Sequence[int]
    """``shared[i]``: KV tokens, from the start, that ``order[i]`` holds in common with ``order[i - 1]``."""


class Range(NamedTuple):
    """KV tokens ``start .. end`` that ``rows`` hold in common, to be read once for all of them."""

    rows: tuple[int, ...]
    """Ascending positions in the batch; neighbours or not."""
    start: int
    end: int
    level: int
    """Ranges above it that its rows read too: 0, 1 ..."""

    @property
    def adjacent(self) -> bool:
        """Whether its rows are neighbours in the batch."""
        return self.rows[-1] - self.rows[0] + 1 == len(self.rows)


class Sharing(NamedTuple):
    """The plan for one set of rows. It stays good while they decode: only their tails grow."""

    ranges: tuple[Range, ...]
    """Those above before those below; rows of one level are disjoint."""
    tails: tuple[int, ...]
    """By row: where what it reads alone begins."""
    saved: int
    """KV tokens a step does not read, of those that it would read without sharing."""

    @property
    def levels(self) -> int:
        return 1 + max((each.level for each in self.ranges), default=-1)


class Costs(NamedTuple):
    """What sharing costs in one attention layer, in KV tokens that could be read meanwhile.

    What the queries compute is the same either way, and does not count.
    """

    plan: float = 0.0
    """Once, if anything is shared (kernels that are launched in addition)."""
    range: float = 0.0
    """For each range."""
    row: float = 0.0
    """For each row of each range (its partial result is merged)."""
    levels: int = 4
    """Ranges that one row may read, at most."""

    @classmethod
    def of(
        cls,
        *,
        kv_bytes: float,
        bandwidth: float,
        plan: float = 0.0,
        range: float = 0.0,
        row: float = 0.0,
        levels: int = 4,
    ) -> Costs:
        """From seconds.

        :param kv_bytes: of one token in one layer on this rank: 2 x KV heads x head size x bytes of an element.
        :param bandwidth: bytes a second.
        """
        rate = bandwidth / kv_bytes
        return cls(plan * rate, range * rate, row * rate, levels)


FREE = Costs()
"""Whatever is shared is worth it."""


Column = Callable[[Sequence[int], int], Sequence[int]]
"""``column(rows, k)``: the KV slots that token k of these rows is held in."""


def paths_from_slots(column: Column, lengths: Sequence[int]) -> Paths:
    """Paths of rows whose KV slots are known.

    Two rows that hold one slot at one position hold the same node of the engine's radix tree, and so the same slots
    before it: the end of what a group shares is found by bisection. Slots looked at: rows x log2(length) for every
    level on which they part.

    :param lengths: tokens of each row; nothing behind them is looked at.
    """
    order: list[int] = []
    shared: list[int] = []
    # Rows that share ``depth`` tokens, and what the first of them shares with the row that comes before it.
    groups = [(list(range(len(lengths))), 0, 0)] if lengths else []
    while groups:
        rows, depth, common = groups.pop()
        if len(rows) == 1:
            order.append(rows[0])
            shared.append(common)
            continue
        branches = [([row], depth) for row in rows if lengths[row] == depth]
        going_on = [row for row in rows if lengths[row] > depth]
        by_slot: dict[int, list[int]] = {}
        for row, slot in zip(going_on, column(going_on, depth) if going_on else (), strict=True):
            by_slot.setdefault(slot, []).append(row)
        branches += [(branch, _end_of_common(column, branch, depth + 1, lengths)) for branch in by_slot.values()]
        commons = [common, *([depth] * (len(branches) - 1))]
        groups += [(*branch, common) for branch, common in reversed([*zip(branches, commons, strict=True)])]
    return Paths(order, shared)


def _end_of_common(column: Column, rows: Sequence[int], low: int, lengths: Sequence[int]) -> int:
    """Tokens that all ``rows`` have in common; at least ``low``."""
    high = min(lengths[row] for row in rows)
    while low < high and len(rows) > 1:
        middle = (low + high + 1) // 2
        if len(set(column(rows, middle - 1))) == 1:
            low = middle
        else:
            high = middle - 1
    return low


def paths_of_rows(
    order: Sequence[int], shared: Sequence[int], position: Mapping[int, int], held: Sequence[int]
) -> Paths:
    """Paths of a batch, of those that the scheduler knows (``View``).

    Equal tokens are in equal slots only as far as the engine's cache owns them, for both rows: one that does not own
    what it has in common with a neighbour (it is being computed) is taken out of the family.

    :param order: ids of running rows, depth-first; those that are not in the batch are left out.
    :param shared: tokens that each has in common with the one before it.
    :param position: row of the batch, by id; rows that ``order`` does not name share nothing.
    :param held: by row of the batch: tokens, from the start, that the engine's cache owns.
    """
    rows: list[int] = []
    commons: list[int] = []
    common = 0
    for id, before, after in zip(order, shared, [*shared[1:], 0], strict=False):
        common = min(common, before)
        row = position.get(id)
        if row is not None and held[row] >= max(before, after):
            rows.append(row)
            commons.append(common if len(rows) > 1 else 0)
            common = _UNBOUNDED
    named = set(rows)
    rest = [row for row in range(len(held)) if row not in named]
    return Paths(rows + rest, commons + [0] * len(rest))


_UNBOUNDED = 1 << 62


def in_batch_order(paths: Paths) -> Paths:
    """The same rows as neighbours in the batch see each other, for kernels that take only adjacent rows."""
    place = {row: i for i, row in enumerate(paths.order)}
    shared = [0] * len(place)
    for row in range(1, len(place)):
        low, high = sorted((place[row - 1], place[row]))
        shared[row] = min(paths.shared[low + 1 : high + 1])
    return Paths(range(len(place)), shared)


def plan_sharing(paths: Paths, costs: Costs = FREE) -> Sharing:
    """The ranges to read once, such that what a step saves, less what they cost, is as much as it can be.

    A range that is not worth it alone is read with the ranges below it, or by every row for itself. Work: rows x GRAIN
    for the tree, nodes x GRAIN x ``costs.levels`` for the choice.
    """
    order, shared = paths
    grain = max(1, max(shared, default=0) // GRAIN)
    known: dict[tuple[int, int, int, int], _Choice] = {}

    def best(node: _Node, start: int, levels: int) -> _Choice:
        """For the rows of a node, of whose common tokens ``start`` are read already."""
        key = (node.first, node.last, start, levels)
        if key not in known:
            known[key] = max(together(node, start, levels), apart(node, start, levels), key=lambda choice: choice.gain)
        return known[key]

    def apart(node: _Node, start: int, levels: int) -> _Choice:
        choices = [best(each, start, levels) for each in node.below] if levels else []
        return _Choice(sum(choice.gain for choice in choices), None, choices)

    def together(node: _Node, start: int, levels: int) -> _Choice:
        rows = node.last - node.first
        gain = (rows - 1) * (node.end - start) - costs.range - rows * costs.row
        below = apart(node, node.end, levels - 1)
        return _Choice(gain + below.gain, (node, start), below.below)

    choice = apart(_Node(0, len(order), 0, tuple(_below(shared, 0, len(order), 0, grain))), 0, costs.levels)
    tails = [0] * len(order)
    if choice.gain <= costs.plan:
        return Sharing((), tuple(tails), 0)
    ranges = []
    for node, start, level in _chosen(choice, 0):
        rows = sorted(order[node.first : node.last])
        ranges.append(Range(tuple(rows), start, node.end, level))
        for row in rows:
            tails[row] = max(tails[row], node.end)
    ranges.sort(key=lambda each: (each.level, each.rows))
    return Sharing(tuple(ranges), tuple(tails), sum((len(each.rows) - 1) * (each.end - each.start) for each in ranges))


class _Node(NamedTuple):
    """Rows ``first .. last`` of the order, which have ``end`` tokens in common."""

    first: int
    last: int
    end: int
    below: tuple[_Node, ...]


class _Choice(NamedTuple):
    gain: float
    shared: tuple[_Node, int] | None
    """What is read once, if anything: the common tokens of a node, from a start on."""
    below: list[_Choice]


def _below(shared: Sequence[int], first: int, last: int, end: int, grain: int) -> Iterator[_Node]:
    """The groups within a group of rows that have at least ``grain`` tokens more in common than its ``end``."""
    cuts = [i for i in range(first + 1, last) if shared[i] < end + grain]
    for start, stop in pairwise([first, *cuts, last]):
        if stop - start > 1:
            deeper = min(shared[start + 1 : stop])
            yield _Node(start, stop, deeper, tuple(_below(shared, start, stop, deeper, grain)))


def _chosen(choice: _Choice, level: int) -> Iterator[tuple[_Node, int, int]]:
    if choice.shared is not None:
        yield *choice.shared, level
        level += 1
    for below in choice.below:
        yield from _chosen(below, level)


class SharingCache:
    """The plan of the rows at hand, made anew when they are others.

    :ivar made: plans made.
    :ivar used: plans asked for.
    """

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.made = self.used = 0
        self._rows: object = None
        self._plan: Sharing | None = None

    def plan(self, rows: object, paths: Callable[[], Paths]) -> Sharing:
        """:param rows: what the plan depends on: which requests are in which row, and what the scheduler knows of them.
        An engine gives the index of a row out again: its generation belongs to it.
        """
        self.used += 1
        if self._plan is None or rows != self._rows:
            self.made += 1
            self._rows, self._plan = rows, plan_sharing(paths(), self.costs)
        return self._plan

    def forget(self) -> None:
        """The next plan is made anew."""
        self._plan = None
