"""Recordings of a core, without an engine: what they keep, how they end, what is made of them."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path

import pytest

from feather_sglang.cli import main
from feather_sglang.core.interface import Limits, Phase, Request, Row, Step
from feather_sglang.core.recording import RecordedCore, Recorder
from feather_sglang.core.settings import Settings
from feather_sglang.simulate import calibrate
from feather_sglang.simulate.cost import Linear
from feather_sglang.simulate.replay import replay
from feather_sglang.simulate.traces import TraceError, read

MACHINE = {"rows": 4, "kv_tokens": 10_000, "prefill_tokens": 512, "context": 4096}


def edited(path: Path, old: str, new: str) -> Path:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    return path


def recorded(path: Path, **options) -> RecordedCore:
    core = RecordedCore(Settings(chunk_size=4), Recorder(path, lambda: 0.0, MACHINE, **options))
    for id in range(20):
        core.enqueue(Request(id, 8, (0, id), tokens=(list(range(8)),)))
    for _ in range(3):
        core.begin([], [])
        plan = core.plan_admissions(Limits(1000, 4, 512, idle=True))
        core.settle({}, {candidate.id: "" for candidate in plan.order})
    return core


def test_a_folder_that_is_gone(tmp_path, caplog):
    core = recorded(tmp_path / "none" / "recording")
    assert core.state()["waiting"] == 20
    assert len(caplog.records) == 1


def test_it_is_bounded(tmp_path, caplog):
    path = tmp_path / "recording"
    core = recorded(path, limit=1500)
    assert not core._recorder.is_open
    assert path.stat().st_size <= 1500
    assert "has reached 1,500 bytes" in caplog.text
    assert core.state()["waiting"] == 20
    assert replay(path).differences == []


def test_an_old_one_is_kept(tmp_path):
    path = tmp_path / "recording"
    path.write_text("before")
    recorded(path)
    assert (tmp_path / "recording.1").read_text() == "before"


def test_what_cannot_be_recorded_ends_the_recording_alone(tmp_path, caplog):
    core = recorded(tmp_path / "recording")
    core.begin([Row(0, 2, 8, grown=[object()])._replace(id=99, grown=None)], [], {})
    core.leave(3, object())  # type: ignore[arg-type]
    assert not core._recorder.is_open
    assert "TypeError" in caplog.text
    assert core.state()["waiting"] == 19


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('"version":1', '"version":9', "line 1: this is no recording of this version"),
        ('{"core":', '{"ore":', "line 2: there is no call `ore` here"),
        ('"reserve":', '"reverse":', "line 3: the call is damaged (KeyError: 'reserve')"),
        ('"chunks":"', '"chunks":"!', "line 3: the call is damaged"),
        ('{"enqueue":', '{"enqueue', "line 3: this is not JSON"),
    ],
)
def test_a_damaged_recording(tmp_path, old, new, complaint):
    core = recorded(tmp_path / "recording")
    core._recorder.close()
    with pytest.raises(TraceError) as raised:
        replay(edited(tmp_path / "recording", old, new))
    assert complaint in str(raised.value)


def lived(path: Path) -> RecordedCore:
    """Two conversations of a family, one retracted, one aborted; and a request that never came to an end."""
    clock = count()
    core = RecordedCore(Settings(chunk_size=4), Recorder(path, lambda: next(clock) / 8, MACHINE))
    for id in range(4):
        core.enqueue(Request(id, 10, (0, id), tokens=([7] * 8, [id, id]), max_new=8))
    core.begin([], [])
    core.plan_admissions(Limits(1000, 4, 512, idle=True))
    core.settle({0: 0, 1: 0}, {})
    core.begin([Row(0, Phase.DECODING, 10, grown=[1, 2, 3])], [0, 1])
    core.enqueue(Request(1, 11, (0, 1), tokens=([7] * 8, [1, 1, 5]), max_new=8))
    core.leave(2, None)
    core.settle({1: 8}, {})
    core.begin([Row(0, Phase.DECODING, 10, grown=[4])], [0, 1], {0: 4})
    core.leave(1, 2)
    core._recorder.close()
    return core


def test_a_recording_is_a_trace(tmp_path: Path) -> None:
    lived(tmp_path / "recording")
    trace = read(tmp_path / "recording")
    assert (trace.format, trace.level_tokens) == ("recording", 4)
    assert [(job.length, job.output, len(job.levels)) for job in trace.jobs] == [(10, 4, 2), (10, 2, 2)]
    assert trace.jobs[0].levels == trace.jobs[1].levels
    assert 0 == trace.jobs[0].arrival < trace.jobs[1].arrival
    assert trace.notes == ("2 requests that did not finish are left out",)
    assert len(read(tmp_path / "recording", 1).jobs) == 1


def test_what_was_generated_is_shared_in_a_replay(tmp_path: Path) -> None:
    core = lived(tmp_path / "recording")
    found = replay(tmp_path / "recording")
    assert (found.cores, found.passes, found.plans, found.differences) == (1, 3, 1, [])
    assert core.state()["cached_tokens"] == 8 + 4, "the prefix, and the chunk that 0 completed"


def test_replay_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "recording"
    lived(path)
    assert main.main(["simulate", str(path), "--replay"]) == 0
    assert "every decision is as it was recorded" in capsys.readouterr().out
    edited(path, '"decided":[[0', '"decided":[[9')
    assert main.main(["simulate", str(path), "--replay"]) == 1
    assert "the decisions differ" in capsys.readouterr().out


COST = Linear(0.040, 4e-4, 2e-7, 2.6e-6, prefill_base=0.05, prefill_token=6e-4)


def steps(n: int, prefills: int) -> list[Step]:
    rng = random.Random(1)
    told = []
    for seq in range(n + prefills):
        rows = rng.randint(1, 32)
        total = rows * rng.randint(100, 4000)
        distinct = int(total * rng.uniform(0.1, 1.0))
        noise = rng.lognormvariate(0, 0.03) * (5 if rng.random() < 0.02 else 1)
        if seq < n:
            seconds = COST.base + COST.row * rows + COST.total * total + COST.distinct * distinct
            told.append(Step(seq, "decode", seconds * noise, rows, rows, total, distinct, 4000))
        else:
            computed = rng.randint(1, 8192)
            told.append(Step(seq, "prefill", COST.prefill(computed) * noise, 1, 1, total, total, 4000, computed))
    return told


def test_calibrate_finds_what_steps_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, profile = tmp_path / "recording", tmp_path / "mine.json"
    core = RecordedCore(Settings(), Recorder(path, lambda: 0.0, MACHINE))
    core.observe(steps(600, 100))
    core._recorder.close()
    assert main.main(["calibrate", str(path), "-o", str(profile)]) == 0
    out = capsys.readouterr().out
    assert "600 decode steps, median error" in out
    assert "100 prefill steps" in out
    found = calibrate.read(profile)
    cost = found.cost
    assert isinstance(cost, Linear)
    for field in ("base", "row", "distinct", "prefill_base", "prefill_token"):
        assert getattr(cost, field) == pytest.approx(getattr(COST, field), rel=0.15), field
    assert (found.name, found.rows, found.kv_tokens, found.context) == ("mine", 4, 10_000, 4096)
    assert all(constant.origin == "measured" for constant in found.constants[:6])


def test_calibrate_is_not_led_astray_by_times_that_are_far_off(tmp_path: Path) -> None:
    spoiled = {7: 0.01, 13: 30.0}
    told = [step._replace(seconds=step.seconds * spoiled.get(n % 20, 1.0)) for n, step in enumerate(steps(600, 100))]
    fit = calibrate.fit(told, MACHINE, tmp_path)
    for field in ("base", "row", "distinct", "prefill_base", "prefill_token"):
        assert getattr(fit.cost, field) == pytest.approx(getattr(COST, field), rel=0.2), field


def test_calibrate_without_prefills(tmp_path: Path) -> None:
    fit = calibrate.fit(steps(50, 0), MACHINE, tmp_path)
    assert (fit.prefill_steps, fit.prefill_error) == (0, None)
    assert fit.cost.prefill_base == fit.cost.base


def test_calibrate_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lived(tmp_path / "recording")
    assert main.main(["calibrate", str(tmp_path / "recording")]) == 2
    assert "holds the times of 0 decode steps; expected at least 20. Record a server" in capsys.readouterr().err
    (tmp_path / "p").write_text("{}")
    with pytest.raises(TraceError, match="is no profile"):
        calibrate.read(tmp_path / "p")
    (tmp_path / "e").write_text("")
    with pytest.raises(TraceError, match="is empty"):
        calibrate.calibrate(tmp_path / "e")
