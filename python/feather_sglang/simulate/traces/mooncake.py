"""Mooncake's traces: ``timestamp`` (ms), ``input_length``, ``output_length``, and ``hash_ids`` of chained blocks.

https://github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from feather_sglang.simulate.traces.file import TraceFile, in_order
from feather_sglang.simulate.traces.lines import Line
from feather_sglang.simulate.workload import Job

BLOCK = 512


class Entry(NamedTuple):
    """One line; lengths in tokens."""

    seconds: float
    """Of its arrival."""
    length: int
    output: int
    """At least 1: the prefill makes one."""
    blocks: list[int]
    """Of ``BLOCK`` tokens each; the last may be shorter."""


def entry(line: Line) -> Entry:
    """:raises TraceError: if the line is damaged."""
    length, blocks = line.whole("input_length", 1), line.wholes("hash_ids")
    if len(blocks) != -(-length // BLOCK):
        raise line.wrong(f"there are {len(blocks)} hash_ids for {length:,} tokens", f"one for each {BLOCK} tokens")
    return Entry(line.number_of("timestamp") / 1000, length, max(line.whole("output_length"), 1), blocks)


def read(path: Path, lines: Iterator[Line], limit: int | None) -> TraceFile:
    """See ``file.Reader``."""
    return in_order(path, "Mooncake", [(line.number, _job(entry(line))) for line in islice(lines, limit)], BLOCK)


def _job(found: Entry) -> Job:
    levels = array("Q", found.blocks[: found.length // BLOCK])
    return Job(id=0, arrival=found.seconds, levels=levels, length=found.length, output=found.output)
