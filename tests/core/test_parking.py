"""Who decodes, is parked and comes back when the KV pool is full: never too much, and everybody ends."""

from __future__ import annotations

import random

import pytest

from feather_sglang.core.interface import Limits, Resident
from feather_sglang.core.parking import fit, grows, in_family_order


def limits(
    free: int, *, page: int = 1, soon: int = 0, host: int = 10_000, places: int = 100, may: bool = True
) -> Limits:
    return Limits(free, 0, 0, soon_tokens=soon, page=page, host_tokens=host, host_rows=places, may_park=may)


def rows_of(count: int, length: int = 100, private: int = 50) -> list[Resident]:
    return [Resident(id, length, private) for id in range(count)]


def test_all_rows_while_there_is_room():
    decode = fit(rows_of(4), limits(8))
    assert (decode.rows, decode.park, decode.resume) == ([0, 1, 2, 3], [], [])


def test_the_youngest_make_room_for_many_steps():
    decode = fit(rows_of(4), limits(7))
    assert (decode.rows, decode.park) == ([0, 1, 2], [3])
    assert fit(rows_of(4), limits(7, may=False)).rows == [0, 1, 2, 3], "they fit once more"


def test_what_is_in_flight_sits_out_first():
    rows = [row._replace(settled=False) for row in rows_of(4)]
    decode = fit(rows, limits(7))
    assert (decode.rows, decode.park) == ([0, 1, 2], [])
    assert fit(rows, limits(0)) == ([], [], [], [], ())


def test_rows_that_end_soon_are_waited_for():
    assert fit(rows_of(4), limits(3, soon=50)).rows == []
    assert fit(rows_of(4), limits(4, soon=50)).rows == [0, 1, 2, 3]


def test_the_oldest_come_back_first_and_nobody_overtakes():
    rows = [Resident(0, 100, 50), Resident(1, 100, 500, parked=True), Resident(2, 100, 10, parked=True)]
    assert fit(rows, limits(531)).resume == []
    assert fit(rows, limits(532)).resume == [1]
    assert fit(rows, limits(558)).resume == [1, 2]
    assert fit(rows[1:], limits(501)).resume == [1], "for one step, when nobody decodes"


def test_when_nobody_can_go_on_the_youngest_is_given_up():
    rows = [row._replace(parked=True) for row in rows_of(3)]
    assert fit(rows, limits(50)).release == [2]
    assert fit(rows_of(3), limits(0, host=0)).release == [2]
    assert fit(rows_of(1), limits(0)).rows == [0], "the engine says what becomes of it"


def test_a_row_that_is_not_to_be_held_back_is_not_parked():
    rows = rows_of(4)
    rows[3] = rows[3]._replace(must_decode=True)
    assert fit(rows, limits(7)).park == [2]


@pytest.mark.parametrize("seed", range(20))
def test_everybody_ends_in_any_pool(seed):
    """Rows of drawn lengths in a pool that holds any one of them; parking, steps and arrivals are counted here."""
    draw = random.Random(seed)
    page, host_size = draw.choice([1, 16]), draw.choice([0, 100, 400, 5_000])
    paged = lambda tokens: -(-tokens // page) * page  # noqa: E731
    prompts = [draw.randrange(1, 40) for _ in range(draw.randrange(2, 20))]
    ends = [prompt + draw.randrange(1, 120) for prompt in prompts]
    pool = paged(max(ends)) + draw.randrange(0, 200)
    length: dict[int, int] = {}  # of rows; the rest waits
    parked: set[int] = set()
    waiting = list(range(len(prompts)))
    in_flight: set[int] = set()
    prefix = {i: prompts[i] // page * page for i in waiting}
    for _ in range(20_000):
        used = sum(prefix[i] if i in parked else paged(length[i]) for i in length)
        # An engine sets room aside for the next steps, or what was given up would come back at once.
        while waiting and not parked:
            room = 2 * page * (len(length) + 1) if length else 0
            if used + paged(prompts[waiting[0]]) + room > pool:
                break
            i = waiting.pop(0)
            length[i] = prompts[i]
            used += paged(prompts[i])
        rows = [
            Resident(i, length[i], paged(length[i]) - prefix[i], i in parked, i in parked or i not in in_flight)
            for i in sorted(length)
        ]
        host = host_size - sum(row.private for row in rows if row.parked)
        free = pool - used
        decode = fit(rows, limits(free, page=page, host=max(host, 0)))
        by_id = {row.id: row for row in rows}
        for i in decode.park:
            assert by_id[i].settled
            assert not by_id[i].parked
            parked.add(i)
            free += by_id[i].private
        for i in decode.resume:
            parked.remove(i)
            free -= by_id[i].private
        assert sum(by_id[i].private for i in parked) <= host_size
        free -= sum(grows(by_id[i], 1, page) for i in decode.rows)
        assert free >= 0
        assert parked.isdisjoint(decode.rows)
        for i in decode.release:
            parked.discard(i)
            del length[i]
            waiting.append(i)
            waiting.sort()
        in_flight = set(decode.rows)
        for i in decode.rows:
            length[i] += 1
            if length[i] == ends[i]:
                del length[i]
                in_flight.discard(i)
        if not length and not waiting:
            return
    raise AssertionError(f"{sorted(length)} never end, {sorted(parked)} parked, {waiting} wait")


def test_family_order_of_some_rows():
    decode = fit(rows_of(5), limits(100))._replace(rows=[0, 2, 4, 9])
    decode = in_family_order(decode, [4, 3, 2, 1, 0], [0, 64, 128, 32, 64])
    assert (decode.rows, decode.shared) == ([4, 2, 0, 9], [0, 64, 32, 0])
