"""Recordings of a live core: the same decisions one by one when replayed, and no disk can harm serving."""

from __future__ import annotations

import json

import pytest

from feather_sglang.simulate.replay import replay
from tests.harness import workload
from tests.harness.mirror import check_mirror
from tests.harness.prompts import Tokens, interleaved


@pytest.mark.parametrize("gate", ["never", "ucb"])
def test_the_same_decisions_one_by_one(start_alone, tmp_path, gate):
    """Families and loners in namespaces, chunked prompts, aborts, a conversation, a flush, steps."""
    path = tmp_path / "recording"
    harness = start_alone(
        options={"record": path, "gate": gate}, chunked_prefill_size=512, max_running_requests=24, max_total_tokens=6000
    )
    workload.run(harness)
    rid = harness.send(prompt := Tokens().take(300), new=100)
    request = next(req for req in harness.queue if req.rid == rid)
    harness.run()
    harness.send([*prompt, *request.output_ids, *Tokens().take(80)], new=4)
    harness.run()
    harness.flush()
    before = harness.scheduler.feather.core.decisions[0]
    harness.send_all(interleaved(Tokens().families(3, 4, 256, 30)), new=300)
    harness.loop()  # it tells steps
    check_mirror(harness)
    core = harness.scheduler.feather.core
    harness.scheduler.feather.watch.recorder.close()
    found = replay(path)
    assert found.differences == []
    assert found.admitted == core.decisions[0] > before
    assert found.plans > 20
    text = path.read_text()
    calls = {next(iter(json.loads(line))) for line in text.splitlines()}
    assert calls >= {"recording", "core", "enqueue", "leave", "begin", "plan", "settle", "forget", "observe"}
    assert '"changed"' in text
    assert "salt" not in text
    assert str(prompt[:3])[1:-1].replace(" ", "") not in text

    assert '"decided":[[' in text
    path.write_text(text.replace('"decided":[[', '"decided":[[999,', 1))
    assert len(replay(path).differences) == 1


def test_a_full_disk_costs_the_recording(start_alone, caplog):
    harness = start_alone(options={"record": "/dev/full"}, max_running_requests=4)
    rids = harness.send_all(interleaved(Tokens().families(2, 3, 128, 16)), new=4)
    harness.run()
    recorder = harness.scheduler.feather.watch.recorder
    for _ in range(5000):  # what fills the buffer
        recorder.write("forget", lambda: True)
    harness.send(Tokens().take(100))
    harness.run()
    assert set(harness.log.finished) >= set(rids)
    assert harness.state()["feather"]["fallbacks"] == {"recording_off": 1}
    assert harness.scheduler.feather.failures == 0
    assert len([r for r in caplog.records if "the recording" in r.getMessage()]) == 1
