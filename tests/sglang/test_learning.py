"""Gates that learn, on a real Scheduler: they are told its steps, and what they learned outlives it."""

from __future__ import annotations

import pytest
from sglang.srt.managers.io_struct import ShutdownReq

from feather_sglang.cli.frame import Snapshot, frame
from feather_sglang.sglang import learned
from feather_sglang.sglang.metrics import numbers_of
from tests.harness.prompts import Tokens, interleaved

LOAD = {"max_running_requests": 8}


def serve(harness, families=6):
    """More requests than rows, of several families: there is something to decide."""
    rids = harness.send_all(interleaved(Tokens().families(families, 6, 192, 16)), new=12)
    assert harness.loop().finished.keys() >= set(rids)
    return harness.state()["feather"]


@pytest.mark.parametrize("gate", ["ucb", "q", "model"])
def test_a_gate_learns_from_the_steps_of_a_server(start, gate):
    harness = start(**LOAD)
    harness.reconfigure("feather", gate=gate)
    shown = serve(harness)
    learns = shown["gate_state"]
    steps = harness.log.steps
    assert shown["gate_asked"] > 0
    assert shown["ticks"] > 1
    if gate == "model":
        decodes = sum(batch.mode == "DECODE" for batch in harness.log.batches)
        assert decodes - 20 < learns["steps"] <= decodes, "but the first, those after idle passes, and the last episode"
        assert sum(learns["coefficients"].values()) > 0, "whatever part of a step the times of this machine lie in"
    else:
        assert 0 < learns["adds"] + learns["stops"] <= 8 * steps
        assert learns["reward"] > 0
    assert dict(numbers_of(learns)), "for the metrics"
    (line,) = [line for line in shown_by_top(shown) if line.startswith("gate ")]
    assert f"gate     {gate}   asked {shown['gate_asked']} times" in line
    assert ("steps" if gate == "model" else "reward") in line


@pytest.mark.parametrize("overlap", [True, False])
def test_a_step_is_given_the_time_of_its_own_forward_pass(start, monkeypatch, overlap):
    """On a CPU it is over before its result is looked at, and under overlap so is the one after it."""
    harness = start(overlap=overlap, **LOAD)
    harness.reconfigure("feather", gate="model")
    scheduler, now, took, told = harness.scheduler, [100.0], {}, []
    run, ticks = scheduler.run_batch, scheduler.feather_ticks

    def run_batch(batch, *args, **named):
        result = run(batch, *args, **named)
        took[batch.forward_iter] = 0.1 + len(took) % 7 / 100
        now[0] += took[batch.forward_iter]
        return result

    monkeypatch.setattr(scheduler, "run_batch", run_batch)
    monkeypatch.setattr(scheduler.feather, "observe", told.extend)
    for clocked in (ticks, ticks.steps):
        monkeypatch.setattr(clocked, "_clock", lambda: now[0])
    serve(harness)
    assert {"prefill", "decode"} == {step.kind for step in told}
    assert len(told) > 20
    assert [step.seconds for step in told] == pytest.approx([took[step.seq] for step in told])


def shown_by_top(state):
    about = {"url": "http://a-server", "model": "tiny", "sglang": "0"}
    return frame(None, Snapshot(0.0, about, [state]), width=1000, height=60, colour=False)


@pytest.mark.parametrize("gate", ["ucb", "model"])
def test_what_was_learned_outlives_the_scheduler(start_alone, tmp_path, gate):
    path = tmp_path / "state"
    options = {"gate": gate, "state": str(path)}
    harness = start_alone(options=options, **LOAD)
    serve(harness)
    gate_now = harness.scheduler.feather.core.gate
    harness.control(ShutdownReq())
    saved = learned.read(path)
    assert saved.gates[gate] == gate_now.dump()
    assert saved.learned_on["device"] == "cpu"
    harness = start_alone(options={**options, "log": str(tmp_path / "log")}, **LOAD)  # another one
    again = harness.scheduler.feather.core.gate
    assert again is not gate_now
    assert again.dump() == saved.gates[gate]
    serve(harness)
    assert again.dump() != saved.gates[gate], "it goes on from there"
