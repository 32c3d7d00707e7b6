"""Sessions of a coding agent (mini-swe-agent): every request carries all of its session so far, as text."""

from __future__ import annotations

from pathlib import Path

from feather_sglang.bench.workloads import Request, Tokenizer, Workload, files
from feather_sglang.bench.workloads.recorded import Recorded, Wishes, ordered, workload


def miniswe(paths: list[Path], tokenizer: Tokenizer, wishes: Wishes) -> Workload:
    """One session after the other, or in turn.

    :param paths: JSONL files of one or more sessions each.
    :raises UsageError: if a line is damaged.
    """
    sessions: dict[str, list[Recorded]] = {}
    for path in paths:
        for where, line in files.json_lines(path):
            session, text, answer, time = (line.get(name) for name in ("session_id", "input", "output", "timestamp"))
            if not (isinstance(session, str) and isinstance(text, str) and isinstance(answer, str)):
                files.damaged(where, "`session_id`, `input` and `output`, each a text")
            if not isinstance(time, int):
                files.damaged(where, "`timestamp`, in microseconds")
            new = wishes.output_tokens or max(len(tokenizer.encode(answer)), 1)
            request = Request(tokenizer.encode(text), new, session, time / 1e6)
            sessions.setdefault(session, []).append(Recorded(where, request))
    turns = ordered(sessions.values(), interleaved=wishes.interleaved)
    name = f"{len(sessions)} mini-swe sessions, {'interleaved' if wishes.interleaved else 'one after the other'}"
    return workload(name, turns, wishes, timed=True)
