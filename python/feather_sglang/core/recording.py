"""A recording of the calls into a core, from which its decisions can be made again, one by one.

JSON lines: first ``{"recording": ...}``, then a call a line, in order, by the name of the method (``Core``).
Prompts are not in it: of each whole chunk there is a hash under a key that is not kept, and of a namespace another.
What the core decided is there to be compared with. Writing never raises: a file that cannot be written, or that has
grown to its limit, ends the recording with a warning.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from hashlib import blake2b
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

from feather_sglang.core.interface import Admissions, Limits, Request, Row, Step
from feather_sglang.core.scheduler import _NOBODY, SchedulerCore
from feather_sglang.core.settings import Settings

logger = logging.getLogger(__name__)

VERSION = 1
LIMIT_BYTES = 256 << 20
FLUSH_SECONDS = 1.0
LIMIT_FIELDS = tuple(field.name for field in fields(Limits))
"""In the order in which a recording has them."""
_limits = attrgetter(*LIMIT_FIELDS)


class Recorder:
    """The file. One that is there already becomes ``FILE.1``.

    :param clock: seconds, from anywhere.
    :param machine: what the engine has, for a simulation: ``rows``, ``kv_tokens``, ``prefill_tokens``, ``context``.
    """

    def __init__(
        self, path: Path, clock: Callable[[], float], machine: Mapping[str, int], limit: int = LIMIT_BYTES
    ) -> None:
        self.path = path
        self.lost: Callable[[], None] = lambda: None
        """Called once, if the recording ends before it is closed."""
        self._clock = clock
        self._began = self._flushed = clock()
        self._limit = limit
        self._size = 0
        self._key = secrets.token_bytes(16)
        self._file: BinaryIO | None = None
        try:
            if path.is_file():
                os.replace(path, f"{path}.1")
            self._file = path.open("wb", buffering=1 << 16)
        except OSError as error:
            self._end(str(error))
        self.write("recording", lambda: {"version": VERSION, "machine": dict(machine)})

    @property
    def is_open(self) -> bool:
        """Whether it still records."""
        return self._file is not None

    def now(self) -> float:
        """Seconds since the recording began."""
        return round(self._clock() - self._began, 6)

    def write(self, call: str, make: Callable[..., Any], *args: Any) -> None:
        """One line: what ``make`` makes of the arguments of a call. Whatever goes wrong in it ends the recording."""
        if self._file is None:
            return
        try:
            text = json.dumps({call: make(*args)}, separators=(",", ":")).encode() + b"\n"
            if self._size + len(text) > self._limit:
                self._end(f"it has reached {self._limit:,} bytes")
                return
            self._file.write(text)
            self._size += len(text)
            if self._clock() - self._flushed >= FLUSH_SECONDS:
                self._flushed = self._clock()
                self._file.flush()
        except Exception as error:
            self._end(f"{type(error).__name__}: {error}")

    def digest(self, data: bytes) -> int:
        """A keyed hash, as a token: not negative, 63 bits."""
        return int.from_bytes(blake2b(data, digest_size=8, key=self._key).digest(), "little") >> 1

    def close(self) -> None:
        """End it."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                logger.warning("feather: the end of the recording %s is lost: %s", self.path, error)
                self.lost()

    def _end(self, why: str) -> None:
        logger.warning("feather: the recording %s ends here: %s", self.path, why)
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        except OSError:  # the same disk
            pass
        self.lost()


class RecordedCore(SchedulerCore):
    """The core that serves, and a line for each call that changes it."""

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        super().__init__(settings)
        self._recorder = recorder
        self._alive = array("q")
        """As recorded last."""
        self._tails: dict[int, array[int]] = {}
        """For each request alive, its tokens after the last whole chunk."""
        self._untold = True
        """Whether what the gate knows already is still to be recorded: it is loaded after the core was made."""
        recorder.write("core", _plain, settings)

    @property
    def wants_steps(self) -> bool:
        return True

    def enqueue(self, request: Request) -> None:
        super().enqueue(request)
        self._recorder.write("enqueue", self._request, request)

    def leave(self, id: int, produced: int | None) -> None:
        super().leave(id, produced)
        self._recorder.write("leave", self._left, id, produced)

    def begin(self, changed: Sequence[Row], alive: Sequence[int], finished: Mapping[int, int] = _NOBODY) -> None:
        super().begin(changed, alive, finished)
        self._recorder.write("begin", self._begun, changed, alive, finished)

    def plan_admissions(self, limits: Limits) -> Admissions:
        if self._untold:
            self._untold = False
            if learned := self.gate.dump():
                self._recorder.write("learned", lambda: learned)
        plan = super().plan_admissions(limits)
        self._recorder.write("plan", _planned, limits, plan)
        return plan

    def settle(self, reused: Mapping[int, int], refused: Mapping[int, str]) -> None:
        super().settle(reused, refused)
        self._recorder.write("settle", lambda: {"reused": list(reused.items()), "refused": list(refused)})

    def observe(self, steps: Iterable[Step]) -> None:
        steps = list(steps)
        super().observe(steps)
        if steps:
            self._recorder.write("observe", lambda: steps)

    def bound_waits(self, tokens: int) -> None:
        super().bound_waits(tokens)
        self._recorder.write("bound_waits", lambda: tokens)

    def forget(self) -> None:
        super().forget()
        self._recorder.write("forget", lambda: True)

    def change_gate(self, settings: Settings) -> None:
        super().change_gate(settings)
        self._untold = True
        self._recorder.write("change_gate", _plain, settings)

    def succeed(self, other: SchedulerCore) -> None:
        super().succeed(other)
        self._recorder.write("succeed", lambda: True)

    def _left(self, id: int, produced: int | None) -> list[int | None]:
        self._tails.pop(id, None)
        return [id, produced]

    def _begun(self, changed: Sequence[Row], alive: Sequence[int], finished: Mapping[int, int]) -> dict[str, Any]:
        line: dict[str, Any] = {"t": self._recorder.now()}
        if changed:
            line["changed"] = [self._row(row) for row in changed]
        ids = array("q", alive)
        if ids != self._alive:
            self._alive = ids
            line["alive"] = ids.tolist()
        if finished:
            line["finished"] = list(finished.items())
            for id in finished:
                self._tails.pop(id, None)
        return line

    def _request(self, request: Request) -> dict[str, Any]:
        line: dict[str, Any] = {
            "t": self._recorder.now(),
            "id": request.id,
            "length": request.length,
            "arrival": request.arrival,
            "reserve": request.reserve,
            "max_new": request.max_new,
        }
        if request.predicted_new is not None:
            line["predicted_new"] = request.predicted_new
        if request.namespace:
            parts = request.namespace
            line["namespace"] = [None if p is None else f"{self._recorder.digest(p.encode()):x}" for p in parts]
        if request.shareable is not None:
            line["shareable"] = request.shareable
        if not request.leads:
            line["leads"] = False
        if request.levels is not None:
            line["levels"] = b64encode(array("Q", request.levels)).decode()
            return line
        tokens = array("q")
        for segment in request.tokens or ():
            tokens.extend(segment)
        line["chunks"] = b64encode(array("q", self._chunks(request.id, tokens))).decode()
        return line

    def _chunks(self, id: int, tokens: array[int]) -> list[int]:
        """The hashes of the chunks that these tokens complete."""
        chunk = self.settings.chunk_size
        end = len(tokens) // chunk * chunk
        self._tails[id] = tokens[end:]
        data = tokens.tobytes()
        size, digest = chunk * tokens.itemsize, self._recorder.digest
        return [digest(data[start : start + size]) for start in range(0, end * tokens.itemsize, size)]

    def _row(self, row: Row) -> list[Any]:
        grown: list[Any] = []
        if row.grown is not None and len(row.grown):
            tokens = self._tails.get(row.id, array("q"))
            tokens.extend(row.grown)
            grown = [len(row.grown), self._chunks(row.id, tokens)]
        return [row.id, row.phase, row.published, row.private, row.settled, grown, row.must_decode, row.batch]


def _planned(limits: Limits, plan: Admissions) -> dict[str, Any]:
    return {"limits": _limits(limits), "decided": decided(plan)}


def decided(plan: Admissions) -> list[Any]:
    """Of a plan, what a recording has: ids in order, and the reason why it ended."""
    return [[candidate.id for candidate in plan.order], plan.held, plan.kept, plan.skipped, plan.stop]


def _plain(settings: Settings) -> dict[str, Any]:
    """Without the key of the hashes, which no decision depends on."""
    return {name: value for name, value in asdict(settings).items() if name != "hash_key"}
