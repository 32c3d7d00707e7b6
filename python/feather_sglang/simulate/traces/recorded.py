"""A recording of ``--feather-record`` as a trace: what arrived, when, and how much each request generated."""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feather_sglang.simulate.traces.calls import call_of, chunks_of, header, made
from feather_sglang.simulate.traces.file import TraceFile, in_order
from feather_sglang.simulate.traces.lines import Line
from feather_sglang.simulate.traces.openai import chained
from feather_sglang.simulate.workload import Job


def read(path: Path, lines: Iterator[Line], limit: int | None) -> TraceFile:
    """See ``file.Reader``. A retracted request counts once; one that was not finished is left out."""
    header(path, lines)
    found = _Arrivals()
    for line in lines:
        call, argument = call_of(line)
        take = getattr(found, f"_{call}", None)
        if take is not None:
            made(line, take, argument, line.number)
    finished = sorted(found.finished)[:limit]
    left_out = found.arrived - len(found.finished)
    notes = (f"{left_out} requests that did not finish are left out",) if left_out else ()
    return in_order(path, "recording", finished, found.chunk, notes)


class _Arrivals:
    def __init__(self) -> None:
        self.chunk = 0
        self.finished: list[tuple[int, Job]] = []
        self._alive: dict[int, tuple[int, Job]] = {}
        self._arrived: dict[int, tuple[int, Job]] = {}
        """By the sequence number of its arrival, which a request keeps."""

    @property
    def arrived(self) -> int:
        return len(self._arrived)

    def _core(self, a: dict[str, Any], line: int) -> None:
        self.chunk = a["chunk_size"]

    def _enqueue(self, a: dict[str, Any], line: int) -> None:
        sequence = a["arrival"][1]
        if sequence in self._arrived:  # retracted, or handed to a new core
            self._alive[a["id"]] = self._arrived[sequence]
            return
        if "levels" in a:
            levels = array("Q")
            levels.frombytes(b64decode(a["levels"], validate=True))
        else:
            levels = chained(repr(a.get("namespace")), [bytes(8) + h.to_bytes(8, "little") for h in chunks_of(a)])
        shareable = a.get("shareable")
        if shareable is not None:
            levels = levels[: shareable // self.chunk]
        self._alive[a["id"]] = self._arrived[sequence] = line, Job(0, a["t"], levels, a["length"], 1)

    def _begin(self, a: dict[str, Any], line: int) -> None:
        for id, produced in a.get("finished", ()):
            self._leave([id, produced], line)

    def _leave(self, a: list[Any], line: int) -> None:
        at, job = self._alive.pop(a[0], (0, None))
        if job is not None and a[1] is not None:
            self.finished.append((at, job._replace(output=max(a[1], 1))))
