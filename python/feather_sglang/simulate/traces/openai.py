"""Logs of OpenAI-style requests, one a line: ``messages``, ``prompt`` (text or token ids) or ``input``.

The request may stand in ``body`` or ``request`` (as in files for the batch API) and what came of it in ``response``. Of
text, tokens are counted as characters: as many a token as ``usage`` says on the whole, or ``CHARACTERS``.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from feather_sglang.simulate.traces.file import TraceFile, in_order
from feather_sglang.simulate.traces.lines import Line
from feather_sglang.simulate.workload import Job

LEVEL = 64
CHARACTERS = 4.0
"""Of a token of text, where the log does not say; assumed."""
_TIMES = ("timestamp", "created", "created_at", "time")
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class _Request(NamedTuple):
    line: int
    arrival: float
    space: str
    """Requests of different ones share no KV."""
    prompt: str | list[int]
    prompt_tokens: int | None
    output: int | str
    """Tokens, or the text."""


def read(path: Path, lines: Iterator[Line], limit: int | None) -> TraceFile:
    """See ``file.Reader``."""
    requests = [_request(line) for line in islice(lines, limit)]
    counted = [(len(r.prompt), r.prompt_tokens) for r in requests if isinstance(r.prompt, str) and r.prompt_tokens]
    tokens = sum(n for _, n in counted)
    characters = sum(n for n, _ in counted) / tokens if tokens else CHARACTERS
    notes = []
    if any(isinstance(r.prompt, str) for r in requests):
        notes.append(f"text counted as {characters:.2f} characters a token ({'by usage' if tokens else 'assumed'})")
    if not any(r.arrival for r in requests):
        notes.append("no times: all requests arrive at once")
    jobs = [(request.line, _job(request, characters)) for request in requests]
    return in_order(path, "OpenAI-style log", jobs, LEVEL, tuple(notes))


def _job(request: _Request, characters: float) -> Job:
    prompt, output = request.prompt, request.output
    if isinstance(prompt, str):
        length = request.prompt_tokens or max(1, round(len(prompt) / characters))
        ends = [round((n + 1) * LEVEL * characters) for n in range(int(len(prompt) / characters) // LEVEL)]
        pieces: list[bytes] = [
            prompt[start:end].encode(errors="surrogatepass") for start, end in zip([0, *ends], ends, strict=False)
        ]
    else:
        length = len(prompt)
        pieces = [array("q", prompt[n : n + LEVEL]).tobytes() for n in range(0, length - LEVEL + 1, LEVEL)]
    levels = chained(request.space, pieces[: length // LEVEL])
    if isinstance(output, str):
        output = round(len(output) / characters)
    return Job(0, request.arrival, levels, length, max(output, 1))


def chained(space: str, pieces: Sequence[bytes]) -> array[int]:
    """Levels of consecutive pieces of a prompt: each is the hash of all up to it."""
    state = blake2b(space.encode(), digest_size=8)
    levels = array("Q")
    for piece in pieces:
        state.update(len(piece).to_bytes(8, "little") + piece)
        levels.append(int.from_bytes(state.copy().digest(), "little"))
    return levels


def _request(line: Line) -> _Request:
    fields = line.fields
    body = _inner(fields, "body", "request") or fields
    answer = _inner(fields, "response")
    answer = (answer and _inner(answer, "body")) or answer or fields
    usage = _inner(answer, "usage") or {}
    return _Request(
        line=line.number,
        arrival=_arrival(line, fields, body),
        space=json.dumps([body.get(name) for name in ("model", "cache_salt", "lora_path")]),
        prompt=_prompt(line, body),
        prompt_tokens=_whole(usage, "prompt_tokens", "input_tokens"),
        output=_output(line, body, answer, usage),
    )


def _prompt(line: Line, body: Mapping[str, Any]) -> str | list[int]:
    for name in ("messages", "prompt", "input"):
        value = body.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, list) and value and all(type(item) is int for item in value):
            return value
        if isinstance(value, list) and value:
            # Chat templates put the tools first, and each message as it comes.
            parts = [body["tools"], *value] if body.get("tools") else value
            return "".join(json.dumps(part, ensure_ascii=False) for part in parts)
    raise line.wrong("there is no prompt", "`messages`, `prompt` or `input`, not empty")


def _output(line: Line, body: Mapping[str, Any], answer: Mapping[str, Any], usage: Mapping[str, Any]) -> int | str:
    tokens = _whole(usage, "completion_tokens", "output_tokens")
    if tokens is not None:
        return tokens
    text = answer.get("output")
    if isinstance(text, str):
        return text
    tokens = _whole(body, *_LIMITS)
    if tokens is None:
        raise line.wrong("it does not say how much was generated", f"`usage`, `output`, or one of {', '.join(_LIMITS)}")
    return tokens


def _arrival(line: Line, *places: Mapping[str, Any]) -> float:
    """Seconds; 0 if the line has no time."""
    for name in _TIMES:
        for place in places:
            value = place.get(name)
            if isinstance(value, str):
                try:
                    return datetime.fromisoformat(value).timestamp()
                except ValueError:
                    raise line.wrong(f"`{name}` is {value!r}", "seconds, or a time as 2025-01-31T12:00:00Z") from None
            if isinstance(value, int | float) and not isinstance(value, bool):
                return _seconds(value)
    return 0.0


def _seconds(time: float) -> float:
    """Since the epoch, a time in ms, us or ns is known by its size: seconds reach 1e11 in the year 5138."""
    while time >= 1e11:
        time /= 1000
    return time


def _inner(fields: Mapping[str, Any], *names: str) -> dict[str, Any] | None:
    return next((fields[name] for name in names if isinstance(fields.get(name), dict)), None)


def _whole(fields: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = fields.get(name)
        if type(value) is int and value >= 0:
            return value
    return None
