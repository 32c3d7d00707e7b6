"""Readers of recorded traffic, one a format; ``read`` tells the formats apart by the first line."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

from feather_sglang.simulate.traces import mooncake, openai, recorded, serving
from feather_sglang.simulate.traces.file import Reader, TraceFile
from feather_sglang.simulate.traces.lines import TraceError, read_lines

__all__ = ["TraceError", "TraceFile", "read"]

_FORMATS: tuple[tuple[frozenset[str], Reader], ...] = (
    (frozenset({"hash_ids"}), mooncake.read),
    (frozenset({"recording"}), recorded.read),
    (frozenset({"input_lens", "total_input_tokens"}), serving.read),
    (frozenset({"messages", "prompt", "input", "body", "request"}), openai.read),
)
"""Keys of which a format has one at least in its first line, and its reader."""


def read(path: Path, limit: int | None = None) -> TraceFile:
    """The trace in a file.

    :param limit: read the first so many requests only.
    :raises TraceError: if there is none that can be used.
    """
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path} is empty; expected one request a line")
    for keys, reader in _FORMATS:
        if keys & first.fields.keys():
            return reader(path, chain([first], lines), limit)
    raise TraceError(
        f"{path}, line {first.number}: no known format has the keys {', '.join(sorted(first.fields)[:8]) or '{}'}; "
        "expected a Mooncake trace (hash_ids), bench_serving output (input_lens), an OpenAI-style request log "
        "(messages, prompt or input), or a recording of --feather-record"
    )
