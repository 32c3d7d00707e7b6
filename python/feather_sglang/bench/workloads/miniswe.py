"""Sessions of a coding agent (mini-swe-agent): every request carries all of its session so far, as text."""

from __future__ import annotations

from pathlib import Path

from feather_sglang.bench.workloads import Request, Tokenizer, Workload, files
from feather_sglang.bench.workloads.recorded import Recorded, Wishes, ordered, workload


def miniswe(paths: list[Path], tokenizer: Tokenizer, wishes: Wishes) -> Workload:
    """One session after the other, or in turn.

    :param paths: JSONL files of one or more sessions each.
    :raises TraceError: if a line is damaged.
    """
    sessions: dict[str, list[Recorded]] = {}
    for line in (line for path in paths for line in files.lines_of(path)):
        session, text, answer = line.text("session_id"), line.text("input"), line.text("output")
        new = wishes.output_tokens or max(len(tokenizer.encode(answer)), 1)
        request = Request(tokenizer.encode(text), new, session, line.number_of("timestamp") / 1e6)
        sessions.setdefault(session, []).append(Recorded(line.where, request))
    turns = ordered(sessions.values(), interleaved=wishes.interleaved)
    name = f"{len(sessions)} mini-swe sessions, {'interleaved' if wishes.interleaved else 'one after the other'}"
    return workload(name, turns, wishes, timed=True)
