"""Lanes and gates for batch jobs on SGLang's Scheduler: static batches last as long as their longest output."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sglang.srt.sampling.sampling_params import SamplingParams

from feather_sglang.sglang.changes import changed
from feather_sglang.sglang.options import OUTPUT_TOKENS
from feather_sglang.simulate.bins import uniform
from tests.harness.mirror import check_mirror
from tests.harness.prompts import Tokens

BATCH, REQUESTS = 16, 512
LOW, HIGH = 2, 33


def send(harness: Any, prompt: list[int], new: int, said: Any) -> str:
    """:param said: of its output, by the client."""
    sampling = SamplingParams(
        max_new_tokens=new, temperature=0, ignore_eos=True, custom_params={OUTPUT_TOKENS: said, "other": 1}
    )
    sampling.normalize(None)
    return harness.send(prompt, sampling_params=sampling)


def serve(harness: Any, each: int = BATCH, **settings: Any) -> tuple[int, list[list[int]]]:
    """Requests of U[LOW, HIGH] output tokens in static batches: forward steps, and the outputs of each batch.

    :param each: requests of each length; a whole batch, so that bins hold whole batches.
    """
    harness.reconfigure(gate="offline", **settings)
    tokens, outputs = Tokens(), {}
    lengths = [*range(LOW, HIGH + 1)] * each
    random.Random(3).shuffle(lengths)
    for new in lengths:
        outputs[send(harness, tokens.take(8), new, new)] = new
    log = harness.run()
    assert log.finished.keys() == outputs.keys()
    batches = [[outputs[rid] for rid in batch.rids] for batch in log.batches if batch.is_prefill]
    assert sum(map(len, batches)) == len(lengths)
    check_mirror(harness)
    return log.steps, batches


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [True, False])
def test_static_bins(start, overlap):
    """Forward steps are the sum of each batch's longest output, and as many as theory says."""
    harness = start(max_running_requests=BATCH, overlap=overlap)
    found = {}
    for lanes in (1, 2, 4, 8) if overlap else (4,):
        steps, batches = serve(harness, lanes=lanes, length="request")
        assert steps == sum(max(batch) for batch in batches)
        assert [len(batch) for batch in batches] == [BATCH] * (REQUESTS // BATCH)
        found[lanes] = REQUESTS / steps
        assert found[lanes] == pytest.approx(uniform(LOW - 0.5, HIGH + 0.5, lanes, BATCH), rel=0.07)
    assert sorted(found.values()) == list(found.values())
    # The faults that this is for: a batch is joined, or is of more than one lane.
    if overlap:
        steps, batches = serve(harness, lanes=8, length="max-tokens", barrier=False)
        assert steps == sum(max(batch) for batch in batches), "the limit is as good as what the client says"
        core_type = type(harness.scheduler.feather.core)
        for fault, broken in (("_is_closed", lambda self, limits: False), ("_lane_for", lambda self, limits: None)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(core_type, fault, broken)
                steps, batches = serve(harness, BATCH - 1, lanes=8, length="request")
            joined = steps != sum(max(batch) for batch in batches)
            mixed = max(max(batch) - min(batch) for batch in batches) > (HIGH - LOW) / 8
            assert joined or mixed


def test_the_short_ones_first(start):
    harness = start(max_running_requests=4)
    harness.reconfigure(lanes=2, length="request")
    tokens = Tokens()
    lengths = [40, 3, 41, 4, 42, 5, 43, 6]
    rids = [send(harness, tokens.take(20), n, n) for n in lengths]
    assert harness.run().admitted == [rids[i] for i in (1, 3, 5, 7, 0, 2, 4, 6)]
    state = harness.state()["feather"]
    assert (state["lanes"], state["length"], state["length_error"]) == (2, "request", 0.0)
    assert state["lane_bounds"] == [40]


@pytest.mark.parametrize("said", [None, 0, -5, 1 << 60, True, "17", 3.5, [9]])
def test_nonsense_is_not_believed(start, said):
    harness = start(max_running_requests=4)
    harness.reconfigure(lanes=2, length="request")
    rid = send(harness, Tokens().take(20), 3, said)
    assert rid in harness.run().finished
    assert harness.scheduler.feather.failures == 0
    assert harness.state()["feather"]["length_error"] is None


def test_families_tell_the_length(start):
    """Learned from what finished; and a retracted request comes back into a lane."""
    harness = start(max_running_requests=8)
    harness.reconfigure(lanes=2, length="family")
    tokens = Tokens()
    short, long = tokens.take(128), tokens.take(128)
    for _ in range(5):
        for prefix, new in ((short, 2), (long, 30)):
            harness.send(prefix + tokens.take(9), new)
    harness.run()
    rids = [harness.send(prefix + tokens.take(9), new) for prefix, new in [(long, 30), (short, 2)] * 4]
    before = len(harness.log.admitted)
    for _ in range(3):
        harness.step()
    harness.pause("retract")
    harness.resume()
    log = harness.run()
    assert log.admitted[before : before + 4] == rids[1::2]
    assert set(rids) <= log.finished.keys()
    assert harness.state()["feather"]["length_error"] < 0.6
    check_mirror(harness)


def test_another_gate_is_a_change_at_run_time(start):
    harness = start(max_running_requests=4)
    harness.reconfigure(lanes=2, length="request")
    tokens = Tokens()
    for n in (5, 20, 6, 30):
        send(harness, tokens.take(20), n, n)
    harness.step()
    adapter = harness.scheduler.feather
    for texts in ({"gate": "refill"}, {"gate": "offline"}, {"order": "held"}):
        settings, *_ = changed(adapter.settings, texts)
        adapter.reconfigure(settings)
        harness.step()
    assert adapter.core.lanes.count == 2
    assert len(harness.run().finished) == 4
    check_mirror(harness)
