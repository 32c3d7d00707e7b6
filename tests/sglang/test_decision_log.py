"""The decision log: a person can follow it, it is bounded, and no disk can harm serving."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feather_sglang.core.interface import Admissions, Candidate, Limits
from feather_sglang.core.settings import Settings
from feather_sglang.sglang.book import Book
from feather_sglang.sglang.decision_log import DecisionLog
from tests.harness.prompts import Tokens, interleaved

BEFORE = {"running": 0, "tip_chunks": 0, "total_kv": 0, "distinct_kv": 0, "waiting": 9, "scheduled_tokens": 7}


def write(log):
    plan = Admissions([Candidate(1, 5, 5, 5, 0, 0, 0)], held=3, kept=0, skipped=0, stop="room")
    limits = Limits(kv_tokens=100, rows=2, prefill_tokens=50)
    log.planned(limits, plan, settings=Settings(), number=4, before=BEFORE, book=Book(), held_for={})
    log.settled([], [])


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_can_be_followed(start_alone, tmp_path):
    path = tmp_path / "decisions"
    harness = start_alone(options={"log": path, "order": "held"}, max_running_requests=8)
    families = Tokens().families(2, 4, 512, 40)
    rids = [harness.send(p, new=4, cache_salt="do-not-show") for p in interleaved(families)]
    harness.run()
    lines = lines_of(path)
    admitted = [entry for line in lines for entry in line["admit"]]
    assert [entry["rid"] for entry in admitted] == harness.log.admitted
    assert {rid for line in lines for rid in line["cached"]} == set(rids)
    first = lines[0]
    assert [entry["rid"] for entry in first["admit"]] == ["r0", "r1"]
    assert [entry["why"] for entry in first["admit"]] == ["oldest", "oldest"]
    assert first["state"] == {"batch": 0, "tip_tokens": 0, "total_kv": 0, "distinct_kv": 0, "waiting": 8}
    assert (first["held"], first["held_for"]) == (6, {"r0": 3, "r1": 3})
    sibling = next(entry for entry in admitted if entry["rid"] == "r2")
    assert (sibling["computes"], sibling["shares"]) == (40, 512)
    assert all(line["cached"][e["rid"]] >= e["shares"] for line in lines for e in line["admit"])
    assert [line["pass"] for line in lines] == sorted({line["pass"] for line in lines})
    text = path.read_text()
    assert "do-not-show" not in text
    assert str(families[0][0][:3])[1:-1] not in text


def test_it_says_why_a_request_goes_before_an_older_one(start_alone, tmp_path):
    path = tmp_path / "decisions"
    harness = start_alone(options={"log": path, "order": "held"}, max_running_requests=2)
    tokens = Tokens()
    ((prefix_of, sibling),) = tokens.families(1, 2, 512, 40)
    harness.send(prefix_of, new=60)
    for _ in range(3):
        harness.step()
    harness.send(tokens.take(600), rid="older", new=2)
    harness.send(sibling, rid="sibling", new=2)
    harness.run()
    why = {entry["rid"]: entry["why"] for line in lines_of(path) for entry in line["admit"]}
    assert why == {"r0": "oldest", "sibling": "the batch holds 512 tokens of it", "older": "oldest"}


def test_it_is_bounded(tmp_path):
    path = tmp_path / "decisions"
    log = DecisionLog(path, lambda: pytest.fail("lost"), limit=2_000)
    for _ in range(50):
        write(log)
    sizes = [p.stat().st_size for p in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) <= 2_000
    assert lines_of(path)[-1]["held"] == lines_of(Path(f"{path}.1"))[0]["held"] == 3
    log.close()
    assert DecisionLog(path, lambda: None, limit=2_000).path.stat().st_size > 0  # an old one is continued


@pytest.mark.parametrize("path", ["/dev/full", "/nonexistent/folder/decisions"])
def test_a_disk_that_refuses_costs_one_warning_and_the_log(path, caplog):
    lost = []
    log = DecisionLog(Path(path), lambda: lost.append(1))
    for _ in range(3):
        write(log)
    assert lost == [1]
    assert len([r for r in caplog.records if "the decision log" in r.getMessage()]) == 1


def test_a_full_disk_does_not_stop_serving(start_alone, caplog):
    harness = start_alone(options={"log": "/dev/full"}, max_running_requests=4)
    rids = harness.send_all(interleaved(Tokens().families(2, 3, 128, 16)), new=4)
    harness.run()
    assert set(harness.log.finished) == set(rids)
    assert harness.state()["feather"]["fallbacks"] == {"log_off": 1}
    assert harness.scheduler.feather.failures == 0
