"""Which rows decode when the KV of a step does not fit: some are parked instead of computed again later.

A parked row keeps its place in the batch and the prefix that the engine's cache owns; what is its own waits on the
host. Rows are parked from the youngest on and resumed from the oldest on, so the oldest row is never parked and what
was parked first for lack of room is not overtaken: every row ends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from feather_sglang.core.interface import Decode, Limits, Resident

HORIZON = 16
"""Decode steps that must fit after rows were parked, and after one was resumed: moving KV is to be worth it."""
WARNING = 2
"""Decode steps that no longer fit when the first row is parked. A row whose last step is in flight cannot be: it sits
out a step first, which the others need not do if there is room for one more."""

_UNBOUNDED = 1 << 62


def fit(rows: Sequence[Resident], limits: Limits) -> Decode:
    """All rows that the KV pool has room for, in the order given, and who makes room or comes back.

    No rows at all: the next pass knows more, because what is in flight is settled by then. O(rows).

    :param rows: oldest first.
    :param limits: ``kv_tokens`` free now, ``soon_tokens`` in addition with the next pass, room on the host.
    """
    decoding = [row for row in rows if not row.parked]
    page, free, soon = limits.page, limits.kv_tokens, limits.soon_tokens
    if soon and _growth(decoding, 1, page) > free:
        return Decode([], [], [], [])
    if _growth(decoding, WARNING, page) > free + soon:
        return _make_room(rows, decoding, limits)
    resumed = _resumed(rows, decoding, free, page)
    out = {row.id for row in rows if row.parked}.difference(resumed)
    going_on = [row.id for row in rows if row.id not in out]
    if going_on or soon or len(rows) < 2:
        return Decode(going_on, [], resumed, [])
    return Decode([], [], [], [], [_youngest(rows)])  # not even the oldest can come back


def arrange(rows: Sequence[Resident], chosen: Collection[int], limits: Limits) -> Decode:
    """The rows that are to decode, and those that must; others make room for the parked ones among them.

    Where that does not give them room, it is ``fit`` that says who goes on.

    :param rows: oldest first.
    :param chosen: ids of those that are to decode.
    """
    page, free = limits.page, limits.kv_tokens
    going_on = [row for row in rows if row.id in chosen or row.must_decode]
    decoding = [row for row in going_on if not row.parked]
    need = _growth(going_on, HORIZON, page) + sum(row.private for row in going_on if row.parked)
    host, places = limits.host_tokens, limits.host_rows
    park = []
    for row in reversed(rows):
        if need <= free or not limits.may_park:
            break
        idle = not (row.parked or row.id in chosen or row.must_decode)
        if idle and row.settled and 0 < row.private <= host and places:
            park.append(row.id)
            free += row.private
            host -= row.private
            places -= 1
    resumed = _resumed(going_on, decoding, free, page)
    if _growth(decoding, 1, page) > free or not (decoding or resumed):
        return fit(rows, limits)
    return Decode([row.id for row in decoding] + resumed, park, resumed, [])


def in_family_order(decode: Decode, order: Sequence[int], shared: Sequence[int]) -> Decode:
    """The same decision with its rows depth-first by path; rows that are not known there come last, and share nothing.

    :param order: ids of all running rows, depth-first.
    :param shared: tokens that each has in common with the one before it.
    """
    chosen = dict.fromkeys(decode.rows)
    rows: list[int] = []
    commons: list[int] = []
    common = 0
    for id, before in zip(order, shared, strict=True):
        common = min(common, before)
        if id in chosen:
            del chosen[id]
            commons.append(common if rows else 0)
            rows.append(id)
            common = _UNBOUNDED
    return decode._replace(rows=[*rows, *chosen], shared=commons + [0] * len(chosen))


def grows(row: Resident, steps: int, page: int) -> int:
    """KV tokens, in whole pages, that so many decode steps of a row take."""
    return steps if page == 1 else page * (-(-(row.length + steps) // page) - -(-row.length // page))


def _growth(rows: Sequence[Resident], steps: int, page: int) -> int:
    return steps * len(rows) if page == 1 else sum(grows(row, steps, page) for row in rows)


def _youngest(rows: Sequence[Resident]) -> int:
    """The row to give up, unless it is the only one: it ends last anyway, and has the least to compute again."""
    return next((row.id for row in reversed(rows[1:]) if not row.must_decode), rows[-1].id)


def _resumed(rows: Sequence[Resident], decoding: Sequence[Resident], free: int, page: int) -> list[int]:
    """Parked rows, oldest first, while there is room for them and for the steps after."""
    steps = HORIZON if decoding else 1
    room = free - _growth(decoding, steps, page)
    resumed = []
    for row in rows:
        if not row.parked:
            continue
        room -= row.private + grows(row, steps, page)
        if room < 0:
            break
        resumed.append(row.id)
        if steps == 1:
            room -= grows(row, HORIZON, page) - grows(row, 1, page)
            steps = HORIZON
    return resumed


def _make_room(rows: Sequence[Resident], decoding: Sequence[Resident], limits: Limits) -> Decode:
    page, free, coming = limits.page, limits.kv_tokens, limits.soon_tokens
    host, places = limits.host_tokens, limits.host_rows
    need, later = _growth(decoding, 1, page), _growth(decoding, HORIZON, page)
    out, park = set(), []
    for row in reversed(decoding[1:]):
        if later <= free + coming:
            break
        if row.must_decode or not limits.may_park or not 0 < row.private <= host or not places:
            continue
        host -= row.private
        places -= 1
        out.add(row.id)
        need -= grows(row, 1, page)
        later -= grows(row, HORIZON, page)
        if row.settled:
            park.append(row.id)
            free += row.private
        else:  # it is parked in the next pass
            coming += row.private
    for row in reversed(decoding):
        if need <= free:
            break
        if row.id not in out and (step := grows(row, 1, page)):
            out.add(row.id)
            need -= step
    going_on = [row.id for row in decoding if row.id not in out]
    if going_on or limits.soon_tokens or any(not row.settled for row in decoding):
        return Decode(going_on, park, [], [])
    if len(rows) > 1:
        return Decode([], park, [], [], [_youngest(rows)])
    return Decode([row.id for row in rows], [], [], [])  # the engine knows what to do with one that cannot go on
