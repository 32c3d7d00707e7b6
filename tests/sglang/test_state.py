"""What ``/server_info`` and the log say."""

from __future__ import annotations

import json

from tests.harness.prompts import Tokens, interleaved

KEYS = {"policy", "gate", "version", "waiting", "held", "running", "tip_chunks", "admitted", "stops", "barrier_waits"}


def test_server_info_shows_the_scheduler_in_plain_builtins(start):
    harness = start(max_running_requests=4)
    harness.send_all(interleaved(Tokens().families(2, 4, 128, 16)), new=8)
    for _ in range(4):
        harness.step()
    state = harness.state()
    shown = state["feather"]
    assert shown.keys() >= KEYS
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["policy"], shown["gate"]) == ("feather", "never")
    assert shown["running"] == 4
    assert shown["waiting"] == len(harness.queue) == 4
    assert shown["admitted"] == 4
    harness.run()
    after = harness.state()["feather"]
    assert (after["waiting"], after["running"], after["admitted"]) == (0, 0, 8)


def test_waits_are_shown_by_family_and_by_namespace(start):
    harness = start(max_running_requests=4)
    harness.reconfigure(order="held")
    for i, prompt in enumerate(interleaved(Tokens().families(2, 6, 128, 16))):
        harness.send(prompt, new=8, cache_salt="secret" if i % 2 else None)
    for _ in range(4):
        harness.step()
    shown = harness.state()["feather"]
    waiting = [family for family in shown["families"] if family["waiting"]]
    assert [family["waiting"] for family in waiting] == [4, 4]
    assert all(family["oldest_seconds"] > 0 for family in waiting)
    harness.run()
    waits = harness.state()["feather"]["waits"]
    assert {name: group["admitted"] for name, group in waits["namespaces"].items()} == {"default": 6, "n1": 6}
    assert all(group["longest_seconds"] >= group["mean_seconds"] > 0 for group in waits["namespaces"].values())
    assert "secret" not in json.dumps(harness.state(), default=str)


def test_the_key_of_the_hashes_is_shown_nowhere(start):
    harness = start()
    key = harness.server_args._feather["hash_key"]
    assert max(key) > 1 << 40
    shown = json.dumps(harness.state(), default=str)
    assert str(key[0]) not in shown
    assert str(key[1]) not in shown


def test_one_line_at_the_start(start_alone, caplog):
    with caplog.at_level("INFO"):
        start_alone(log_level="info", options={"order": "missing", "barrier_min": "128"})
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("feather:")]
    assert len(lines) == 1
    assert lines[0].startswith("feather: policy=feather order=missing gate=never chunk=64 ageing=")
    assert " barrier=128 " in lines[0]
