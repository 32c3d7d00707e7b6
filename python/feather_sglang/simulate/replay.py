"""Recordings of ``--feather-record``: their calls, made again on a core. See ``core.recording`` for the format."""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from feather_sglang.core.interface import Limits, Phase, Request, Row, Step
from feather_sglang.core.recording import LIMIT_FIELDS, decided
from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.core.settings import Settings
from feather_sglang.simulate.traces.calls import call_of, chunks_of, header, made
from feather_sglang.simulate.traces.lines import Line, read_lines

MOST_DIFFERENCES = 5


class Replayed(NamedTuple):
    """What came of a recording's calls."""

    cores: int
    """Cores that were made: the first, and one for each failure or change of settings."""
    passes: int
    plans: int
    """Decisions that were compared."""
    admitted: int
    differences: list[str]
    """The first plans that were not as recorded, each with its line; after one, the rest means little."""


def replay(path: Path) -> Replayed:
    """Make the recorded calls again, and compare each decision.

    :raises TraceError: if the file cannot be read, or is damaged.
    """
    lines = read_lines(path)
    header(path, lines)
    return _Replay().run(lines)


class _Replay:
    def __init__(self) -> None:
        self._core: SchedulerCore | None = None
        self._before: SchedulerCore | None = None
        self._alive: list[int] = []
        self._cores = self._passes = self._plans = 0
        self._differences: list[str] = []
        self._filled: dict[int, int] = {}
        """For each request, how many of its tokens stand after its last whole chunk."""

    def run(self, lines: Iterator[Line]) -> Replayed:
        for line in lines:
            call, argument = call_of(line)
            if call == "core":
                self._before, self._core = self._core, SchedulerCore(made(line, lambda a: Settings(**a), argument))
                self._cores += 1
                continue
            make = getattr(self, f"_{call}", None)
            if make is None or self._core is None:
                raise line.wrong(f"there is no call `{call}` here", "a call as it was recorded")
            made(line, make, self._core, argument)
            if call == "plan" and self._found != argument["decided"] and len(self._differences) < MOST_DIFFERENCES:
                self._differences.append(f"line {line.number}: {self._found}, recorded {argument['decided']}")
        admitted = self._core.decisions[0] if self._core is not None else 0
        return Replayed(self._cores, self._passes, self._plans, admitted, self._differences)

    def _enqueue(self, core: SchedulerCore, a: dict[str, Any]) -> None:
        tokens = levels = None
        if "levels" in a:
            levels = array("Q")
            levels.frombytes(b64decode(a["levels"], validate=True))
        else:
            tokens = self._tokens(core, a["id"], 0, a["length"], chunks_of(a))
        core.enqueue(
            Request(
                id=a["id"],
                length=a["length"],
                arrival=tuple(a["arrival"]),
                tokens=None if tokens is None else (tokens,),
                levels=levels,
                level_tokens=core.settings.chunk_size,
                reserve=a["reserve"],
                namespace=tuple(a.get("namespace", ())),
                shareable=a.get("shareable"),
                leads=a.get("leads", True),
                max_new=a["max_new"],
                predicted_new=a.get("predicted_new"),
            )
        )

    def _leave(self, core: SchedulerCore, a: list[Any]) -> None:
        core.leave(a[0], a[1])
        self._filled.pop(a[0], None)

    def _begin(self, core: SchedulerCore, a: dict[str, Any]) -> None:
        self._alive = a.get("alive", self._alive)
        finished = dict(a.get("finished", ()))
        core.begin([self._row(core, row) for row in a.get("changed", ())], self._alive, finished)
        self._passes += 1
        for id in finished:
            self._filled.pop(id, None)

    def _learned(self, core: SchedulerCore, a: dict[str, Any]) -> None:
        core.gate.load(a)

    def _plan(self, core: SchedulerCore, a: dict[str, Any]) -> None:
        plan = core.plan_admissions(Limits(**dict(zip(LIMIT_FIELDS, a["limits"], strict=True))))
        self._found = decided(plan)
        self._plans += 1

    def _settle(self, core: SchedulerCore, a: dict[str, Any]) -> None:
        core.settle(dict(a["reused"]), dict.fromkeys(a["refused"], ""))

    def _observe(self, core: SchedulerCore, a: list[list[Any]]) -> None:
        core.observe([Step(*step) for step in a])

    def _bound_waits(self, core: SchedulerCore, a: int) -> None:
        core.bound_waits(a)

    def _forget(self, core: SchedulerCore, a: Any) -> None:
        core.forget()

    def _change_gate(self, core: SchedulerCore, a: dict[str, Any]) -> None:
        core.change_gate(Settings(**a))

    def _succeed(self, core: SchedulerCore, a: Any) -> None:
        if self._before is not None:
            core.succeed(self._before)

    def _row(self, core: SchedulerCore, a: list[Any]) -> Row:
        id, phase, published, private, settled, grown, must_decode, batch = a
        tokens = self._tokens(core, id, self._filled.get(id, 0), grown[0], grown[1]) if grown else None
        return Row(id, Phase(phase), published, private, settled, tokens, must_decode, batch)

    def _tokens(self, core: SchedulerCore, id: int, filled: int, length: int, hashes: Any) -> array[int]:
        """Tokens that make the recorded chunks: zeros, and the hash of a chunk in its last place.

        :param filled: tokens of the first chunk that were told before.
        """
        chunk = core.settings.chunk_size
        tokens = array("q", bytes(8 * length))
        tokens[chunk - 1 - filled :: chunk] = array("q", hashes)
        self._filled[id] = (filled + length) % chunk
        return tokens
