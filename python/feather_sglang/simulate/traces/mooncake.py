"""Mooncake's traces: ``timestamp`` (ms), ``input_length``, ``output_length``, and ``hash_ids`` of chained blocks.

https://github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from feather_sglang.simulate.traces.file import TraceFile, in_order
from feather_sglang.simulate.traces.lines import Line
from feather_sglang.simulate.workload import Job

BLOCK = 512


def read(path: Path, lines: Iterator[Line], limit: int | None) -> TraceFile:
    """See ``file.Reader``. An output of 0 tokens is taken for 1: the prefill makes one."""
    return in_order(path, "Mooncake", [(line.number, _job(line)) for line in islice(lines, limit)], BLOCK)


def _job(line: Line) -> Job:
    length, blocks = line.whole("input_length", 1), line.wholes("hash_ids")
    if len(blocks) < length // BLOCK:
        raise line.wrong(
            f"there are {len(blocks)} hash_ids for {length:,} tokens", f"one for each block of {BLOCK} tokens"
        )
    return Job(
        id=0,
        arrival=line.number_of("timestamp") / 1000,
        levels=array("Q", blocks[: length // BLOCK]),
        length=length,
        output=max(line.whole("output_length"), 1),
    )
