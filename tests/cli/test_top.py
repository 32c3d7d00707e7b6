"""A frame of ``feather top``: what fits a terminal, and what is said when a server is gone or new."""

from __future__ import annotations

import re

from feather_sglang.cli.frame import Snapshot, frame

ABOUT = {"url": "http://127.0.0.1:30000", "model": "a-model", "sglang": "0.5.23"}
STATE = {
    "policy": "feather", "order": "missing", "gate": "model", "chunk_size": 64, "barrier_min": 256, "max_wait": 60.0,
    "max_wait_tokens": 1_234_567_890, "version": "0.1.0", "total_kv": 9_000_000, "distinct_kv": 1_000_000,
    "running": 1024, "tip_chunks": 3, "held": 7, "waiting": 12_345, "waiting_alone": 5, "oldest_tokens": 987_654_321,
    "families_running": 40, "families_waiting": 40, "admitted": 500, "stops": 20, "barrier_waits": 10, "passes": 100,
    "policy_seconds": 0.02, "prompt_tokens": 1000, "reused_tokens": 500, "gate_asked": 90, "fallbacks": {},
    "waits": {
        "mean_seconds": 1.5, "longest_seconds": 40.0,
        "namespaces": {f"tenant-{i}": {"mean_seconds": 1.5, "longest_seconds": 40.0 - i} for i in range(9)},
    },
    "gate_state": {
        "coefficients": dict.fromkeys(("step", "row", "total", "distinct", "missed", "edge"), 1.234e-5),
        "noise": 0.15, "prefill_pass": 0.018, "price": 0.001, "steps": 5000, "changes": 0, "regime": "look mixed",
        "tokens_per_second": {"fill": 480.0, "alike": 510.0}, "stops": {"mixing": 1, "joining": 2, "probing": 3},
        "dropped": None, "drops": 0,
    },
    "families": [{"running": 256, "waiting": 11_111, "tokens": 131_072, "oldest_seconds": 123.4}] * 30,
}  # fmt: skip


def look(at=0.0, **changes):
    return Snapshot(at, ABOUT, [STATE | changes])


def shown(before, now, width=80, height=24, **options):
    lines = frame(before, now, width=width, height=height, colour=True, **options)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    return lines


def test_nothing_is_cut_off_in_eighty_columns():
    lines = shown(look(), look(1.0))
    text = " ".join(" ".join(lines).split())
    for part in (
        "SGLang 0.5.23", "version 0.1.0", "oldest 987,654,321 of 1,234,567,890 tokens", "- µs a pass", "in 1.0 s",
        "tenant-2 1.5 s/38.0 s", "regime look mixed", "edge 1.234e-05", "alike 510", "probing 3",
    ):  # fmt: skip
        assert part in text, text
    assert "tenant-3" not in text, "those that waited longest"
    families = [line for line in lines if "131,072 tokens" in line]
    assert len(families) >= 3
    assert lines[-1] == "... and smaller ones"


def test_a_server_that_is_gone_is_said_above_its_last_state():
    reason = "http://127.0.0.1:30000/server_info: " + "nobody answers " * 6
    lines = shown(look(), look(1.0), lost=reason)
    text = " ".join(lines[:3])
    assert text.startswith("as it was when it last answered: http://127.0.0.1:30000/server_info")
    assert text.count("nobody answers") == 6


def test_counts_that_begin_anew_are_no_rates():
    text = "\n".join(shown(look(passes=900, admitted=9000), look(1.0)))
    assert "500 admitted" in text
    assert "since the start" in text
    assert "-8" not in text


def test_the_screen_is_shared_by_data_parallel_ranks():
    two = Snapshot(0.0, ABOUT, [STATE, STATE])
    lines = shown(None, two, width=120, height=40)
    assert sum("131,072 tokens" in line for line in lines) >= 6
    assert "data-parallel rank 1" in lines
