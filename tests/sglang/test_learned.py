"""The state file: what is refused, what goes on, and that a crash leaves the old one."""

from __future__ import annotations

import json
import os

import pytest

from feather_sglang.sglang import learned
from feather_sglang.sglang.keeper import Keeper
from feather_sglang.sglang.learned import FORMAT, Learned, StateError

HERE = {"model": "tiny", "device": "cpu", "attention_backend": "torch_native"}


class Counting:
    """A gate that learns how often it was told so."""

    name = "counting"

    def __init__(self, count=0):
        self.count = count

    def dump(self):
        return {"count": self.count} if self.count else {}

    def load(self, dump):
        if dump["count"] < 0:
            raise ValueError("count: expected at least 0")
        self.count = dump["count"]


def keeper(path, here=HERE, every=1e9, writes=True, lost=None):
    return Keeper(path, here, every=every, writes=writes, lost=lost or (lambda: pytest.fail("lost")))


def test_what_one_server_learned_the_next_one_knows(tmp_path):
    path = tmp_path / "state"
    keeper(path).save(Counting(3))
    gate = Counting()
    keeper(path).resume(gate)
    assert gate.count == 3
    assert learned.read(path).gates == {"counting": {"count": 3}}
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


def test_other_gates_keep_what_they_learned(tmp_path):
    path = tmp_path / "state"
    learned.write(path, Learned(HERE, {"other": {"a": 1.5}}))
    keeper(path).save(Counting(3))
    assert learned.read(path).gates == {"other": {"a": 1.5}, "counting": {"count": 3}}


def test_a_gate_that_comes_back_goes_on(tmp_path):
    kept = keeper(None)
    kept.leave(Counting(5))
    gate = Counting()
    kept.resume(gate)
    assert gate.count == 5


def test_one_rank_writes_and_only_when_it_is_time(tmp_path):
    path = tmp_path / "state"
    keeper(path, writes=False, every=0).tick(Counting(1))
    keeper(path).tick(Counting(1))
    assert not path.exists()
    keeper(path, every=0).tick(Counting(1))
    assert path.exists()


def test_a_disk_that_refuses_costs_a_warning(tmp_path, caplog):
    lost = []
    keeper(tmp_path / "gone" / "state", lost=lambda: lost.append(1)).save(Counting(1))
    assert lost == [1]
    assert "is not saved" in caplog.text


def test_a_crash_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "state"
    learned.write(path, Learned(HERE, {"a": {"x": 1}}))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        learned.write(path, Learned(HERE, {"a": {"x": 2}}))
    assert learned.read(path).gates == {"a": {"x": 1}}
    assert [p.name for p in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", HERE)
def test_what_was_learned_elsewhere_is_refused(tmp_path, name):
    path = tmp_path / "state"
    learned.write(path, Learned(HERE, {}))
    with pytest.raises(StateError, match="was learned on") as error:
        keeper(path, {**HERE, name: "another"})
    message = str(error.value)
    assert HERE[name] in message
    assert "'another'" in message
    assert "feather state reset" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is damaged"),
        ("{", "is damaged"),
        ("[1]", "has the format None"),
        ('{"format": "feather-state/9"}', "has the format 'feather-state/9'; expected 'feather-state/1'"),
        (json.dumps({"format": FORMAT}), "no learned_on"),
        (json.dumps({"format": FORMAT, "learned_on": {}, "gates": {"a": 3}}), "no learned_on, or no gates"),
        (b"\xff\xfe".decode("latin1"), "damaged"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path, text, part):
    path = tmp_path / "state"
    path.write_text(text)
    with pytest.raises(StateError, match="the state file") as error:
        learned.read(path)
    assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_gate_cannot_take_is_one_line(tmp_path):
    path = tmp_path / "state"
    for dump in ({"count": -1}, {"counts": 1}):
        learned.write(path, Learned(HERE, {"counting": dump}))
        with pytest.raises(StateError, match="does not fit the gate counting") as error:
            keeper(path).resume(Counting())
        assert "\n" not in str(error.value)


def test_no_file_is_no_fault(tmp_path):
    assert learned.read(tmp_path / "none") is None
