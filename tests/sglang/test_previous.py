"""Files that version 0.1.0 wrote (``previous/``): every later one reads them, or refuses them in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from feather_sglang.cli import main as cli
from feather_sglang.core.gates import make_gate
from feather_sglang.sglang import learned
from feather_sglang.sglang.arguments import options_of
from feather_sglang.sglang.decision_log import DecisionLog
from feather_sglang.sglang.keeper import Keeper
from feather_sglang.sglang.options import read_options
from feather_sglang.simulate.replay import replay

PREVIOUS = Path(__file__).with_name("previous")


def older(name: str, now: str, before: str, to: Path) -> Path:
    """A file as an older version would have stated it."""
    text = (PREVIOUS / name).read_text()
    assert text.count(now) == 1
    to.write_text(text.replace(now, before))
    return to


def refused(capsys, *argv: str) -> str:
    capsys.readouterr()
    assert cli.main(list(argv)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("gate", ["ucb", "q", "model"])
def test_a_gate_goes_on_from_a_state_file(gate):
    found = learned.read(PREVIOUS / "state.json")
    fresh = make_gate(gate)
    Keeper(PREVIOUS / "state.json", found.learned_on, every=1e9, writes=False, lost=pytest.fail).resume(fresh)
    assert fresh.dump() == found.gates[gate]
    assert fresh.state() != make_gate(gate).state()


def test_a_state_file_is_shown(capsys):
    assert cli.main(["state", "show", str(PREVIOUS / "state.json")]) == 0
    assert "gate model" in capsys.readouterr().out


def test_an_older_state_file_is_refused(launch, tmp_path, capsys):
    path = older("state.json", "feather-state/1", "feather-state/0", tmp_path / "state.json")
    for line in (
        launch("--feather-gate", "ucb", "--feather-state", str(path)),
        refused(capsys, "state", "show", str(path)),
    ):
        assert f"{path} has the format 'feather-state/0'; expected 'feather-state/1'. Give another file" in line


def test_a_yaml_file_is_read(launch):
    """With every option that there was, but for those that are files; YAML takes ``on`` for a truth value."""
    given = options_of(launch("--config", str(PREVIOUS / "options.yaml")))
    others = {"chunk_size": "64", "park_host_tokens": "65536", "park_rows": "4"}
    assert given == read_options({"order": "held", "gate": "static", "aging": "0.5", **others}, {})


def test_an_option_that_is_no_more_is_refused(launch, tmp_path):
    path = older("options.yaml", "feather-max-wait:", "feather-longest-wait:", tmp_path / "options.yaml")
    line = launch("--config", str(path))
    assert line.startswith("feather: --feather-longest-wait is no option of feather-sglang ")
    assert line.endswith("the nearest is --feather-max-wait.")


def test_a_recording_is_replayed():
    """Call by call; that the decisions are still the same is not asked of another version."""
    found = replay(PREVIOUS / "recording.jsonl")
    lines = (PREVIOUS / "recording.jsonl").read_text().splitlines()
    assert found.plans == sum(line.startswith('{"plan":') for line in lines) > 0
    assert found.passes == sum(line.startswith('{"begin":') for line in lines)


def test_an_older_recording_is_refused(tmp_path, capsys):
    path = older("recording.jsonl", '"version":1', '"version":0', tmp_path / "recording.jsonl")
    for argv in (
        ("simulate", str(path)),
        ("simulate", str(path), "--replay"),
        ("calibrate", str(path), "-o", "x.json"),
    ):
        assert "this is no recording of this version" in refused(capsys, *argv)


def test_a_decision_log_is_continued_and_refused_as_a_trace(tmp_path, capsys):
    path = tmp_path / "decisions.jsonl"
    shutil.copy(PREVIOUS / "decisions.jsonl", path)
    before = path.read_text()
    DecisionLog(path, lost=pytest.fail).close()
    assert path.read_text() == before
    assert all(
        {"pass", "state", "limits", "admit", "held", "stop", "cached"} <= json.loads(x).keys()
        for x in before.splitlines()
    )
    assert str(path) in refused(capsys, "simulate", str(path))
