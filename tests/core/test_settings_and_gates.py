"""Settings refuse what makes no sense, and the gates' arithmetic."""

from __future__ import annotations

import pytest

from feather_sglang.core.gates import Never, Static, make_gate
from feather_sglang.core.interface import Candidate, View
from feather_sglang.core.settings import GATES, Settings, default_chunk_size


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("order", "fifo", "expected one of missing, held"),
        ("gate", "ucb9", "expected one of never, static"),
        ("chunk_size", 0, "expected a whole number of at least 1"),
        ("chunk_size", 2.5, "expected a whole number of at least 1"),
        ("aging", -0.1, "expected a number of at least 0"),
        ("aging", float("nan"), "expected a number of at least 0"),
        ("barrier_min", -1, "expected a whole number of at least 0"),
        ("max_wait_tokens", -1, "expected a whole number of at least 0"),
        ("kv_capacity", 0, "expected a whole number of at least 1"),
    ],
)
def test_a_bad_setting_is_named(field, value, says):
    with pytest.raises(ValueError, match=says) as caught:
        Settings(**{field: value})
    assert str(caught.value).startswith(f"{field} {value!r}:")
    assert "\n" not in str(caught.value)


def test_the_chunk_is_a_multiple_of_the_page():
    with pytest.raises(ValueError, match=r"multiple of the page size \(48\), such as 96"):
        Settings(chunk_size=64, page_size=48)
    assert [default_chunk_size(page) for page in (1, 16, 48, 64, 128)] == [64, 64, 96, 64, 128]


def batch(rows):
    return View(order=range(rows), shared=[0] * rows, total_kv=0, distinct_kv=0, tip_chunks=0, waiting=0, held=0)


def losing(*chunks, peers=0):
    return [Candidate(i, 1, 1, 1, 20, 20 - lost, peers) for i, lost in enumerate(chunks)]


def test_gates_by_name():
    assert {name: make_gate(name).name for name in GATES} == {name: name for name in GATES}


def test_never_stops_nothing():
    assert Never().cut(batch(9), losing(20, 20, 20)) == 3


def test_static_stops_where_the_tip_would_fall():
    assert Static().cut(batch(4), losing(0, 5, 6)) == 2
    assert Static().cut(batch(4), losing(7, peers=10)) == 1
    assert Static().cut(batch(4), losing(7, peers=9)) == 0
    assert Static().cut(batch(4), losing(8, peers=10)) == 0


def test_static_raises_its_floor():
    gate = Static()
    assert gate.cut(batch(1), losing(6)) == 0
    assert gate.cut(batch(0), losing(6)) == 1, "the first request is always taken"
    gate.cut(batch(0), losing(*[0] * 20))
    assert gate.floor == 10
    assert gate.cut(batch(9), losing(6, 6)) == 1, "below the floor anybody is taken"
