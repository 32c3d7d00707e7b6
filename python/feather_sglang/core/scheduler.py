"""The scheduler core: who is admitted next, and who waits for whom.

The rule itself is in the index (``cht-rs/src/plan.rs``); this class keeps the index in step with the engine, asks the
gate, and counts. One call into the index begins a pass, one plans it and one settles it, whatever their number of
requests; who waits and who runs is kept there, and only there.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any
from zlib import crc32

from feather_sglang._cht import Index
from feather_sglang.core.gates import gate_of
from feather_sglang.core.gates.batching import Batching, Offline
from feather_sglang.core.gates.fixed import Fixed
from feather_sglang.core.interface import Admissions, Candidate, Decode, Limits, Request, Resident, Row, Step, View
from feather_sglang.core.lanes import Lanes
from feather_sglang.core.parking import fit, in_family_order
from feather_sglang.core.selectors import make_selector
from feather_sglang.core.settings import Settings

_candidate = partial(tuple.__new__, Candidate)
"""A third of the time that the constructor takes."""
_NOBODY: Mapping[int, int] = MappingProxyType({})
_REMEMBERED = 256
"""Passes of which a rank knows whether it made the decisions of another."""

_ENDS_WORTH_LOGGING = frozenset({"kept", "room", "looked"})


class SchedulerCore:
    """Implements ``interface.Core``. Not thread-safe: one per engine scheduler."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.gate = gate_of(settings)
        self.selector = make_selector(settings)
        self._index = Index(
            chunk_size=settings.chunk_size,
            page_size=settings.page_size,
            order=settings.order,
            aging=settings.aging,
            barrier_min=settings.barrier_min,
            max_wait_tokens=settings.max_wait_tokens,
            kv_capacity=settings.kv_capacity,
            hash_key=settings.hash_key,
        )
        self.lanes = Lanes(settings.lanes, settings.length, self._index) if settings.lanes > 1 else None
        self._running = 0
        self._lane: int | None = None
        """Of the static batch at hand."""
        self._scheduled = 0
        self._max_wait = settings.max_wait_tokens
        self._digest = 0
        self._recent: deque[tuple[int, int]] = deque([(0, 0)], maxlen=_REMEMBERED)
        """What ``decisions`` was after the last passes that admitted somebody."""
        self._admitted = self._stops = self._barrier_waits = self._refused = 0

    @property
    def scheduled_tokens(self) -> int:
        """Prefill tokens of all admissions, and one for each running row and pass: the clock of ages and bounds."""
        return self._scheduled

    @property
    def decisions(self) -> tuple[int, int]:
        """Admissions so far, and a digest of them: who and when, in what order, with how many tokens from the cache.

        Equal on all ranks, or they do not run the same batches.
        """
        return self._admitted, self._digest

    def made(self, admitted: int, digest: int) -> bool:
        """Whether these were the ``decisions`` at some time; what is older than what is remembered is believed."""
        return (admitted, digest) in self._recent or admitted < self._recent[0][0]

    @property
    def wants_steps(self) -> bool:
        """Whether gate or selector learn from steps; measuring them for nobody is a waste."""
        return not isinstance(self.gate, Fixed) or self.selector.name == "aligned"

    def enqueue(self, request: Request) -> None:
        """A request enters the waiting queue; a running one with the same id was retracted, and leaves its row.

        Raises ValueError if it waits already, or a field is out of range.
        """
        if self._index.runs(request.id):
            self.leave(request.id, None)
        if request.levels is not None:
            self._index.insert_levels(
                request.id,
                request.levels,
                level_tokens=request.level_tokens,
                length=request.length,
                arrival=request.arrival,
                reserve=request.reserve,
                namespace=request.namespace,
                leads=request.leads and self.settings.barrier,
            )
        else:
            self._index.insert(
                request.id,
                request.tokens or (),
                length=request.length,
                arrival=request.arrival,
                reserve=request.reserve,
                namespace=request.namespace,
                shareable=request.shareable,
                leads=request.leads and self.settings.barrier,
            )
        if self.lanes is not None:
            self.lanes.enter(request)

    def leave(self, id: int, produced: int | None) -> None:
        """A request finished (``produced``: its output length) or is gone (None: aborted, lost). Idempotent."""
        if self.lanes is not None:
            self.lanes.ended(id, produced)
        self._index.leave(id, produced is not None)

    def begin(self, changed: Sequence[Row], alive: Sequence[int], finished: Mapping[int, int] = _NOBODY) -> None:
        """Starts a pass with what the engine holds now.

        ``changed``: rows whose state is new; ``alive``: ids of all rows, each once; ``finished``: those of them that
        finished since the last pass, and their output lengths. A row that the core lost sight of is activated or leaves
        here, so a lost event heals in one pass.
        """
        if self.lanes is not None:
            for id, produced in finished.items():
                self.lanes.ended(id, produced)
        self._index.follow(alive, changed, list(finished))
        self._running = len(alive) - len(finished)
        self._scheduled += len(alive)

    def plan_admissions(self, limits: Limits) -> Admissions:
        """Whom to admit in this pass, tentatively until ``settle``."""
        ask_gate = limits.may_stop and self.gate.name != "never"
        if ask_gate and self._is_closed(limits):
            self._stops += 1
            return Admissions([], 0, 0, 0, f"gate {self.gate.name}")
        if self.lanes is not None:
            self.lanes.cut()
        view = self.view() if ask_gate else None
        named, held, kept, skipped, overdue, end = self._index.plan(
            now=self._scheduled,
            kv_tokens=max(limits.kv_tokens, 0),
            rows=max(limits.rows, 0),
            prefill_tokens=max(limits.prefill_tokens, 0),
            idle=limits.idle,
            chunked=limits.chunked,
            lane=self._lane_for(limits),
        )
        order = list(map(_candidate, named))
        stop = end if end in _ENDS_WORTH_LOGGING else None
        if view is not None:
            # A gate never stops an empty batch, and leaves out nobody who is past the fairness bound.
            least = max(overdue, min(len(order), int(limits.idle)))
            taken = max(self.gate.cut(view._replace(step=limits.step, overdue=overdue), order), least)
            if taken < len(order):
                self._index.undo(taken)
                del order[taken:]
                self._stops += 1
                stop = f"gate {self.gate.name}"
        self._barrier_waits += held
        return Admissions(order, held, kept, skipped, stop)

    def _is_closed(self, limits: Limits) -> bool:
        """Whether a batch is decoding that nobody may join."""
        gate = self.gate
        return isinstance(gate, Batching) and not (limits.idle or gate.opens(self._running, limits.rows, limits.step))

    def _lane_for(self, limits: Limits) -> int | None:
        """The only lane to admit from; None: all, one after the other."""
        if limits.lane is not None or self.lanes is None or not isinstance(self.gate, Offline):
            return limits.lane
        if limits.idle or not self._running:
            overdue = self._index.overdue_lane(self._scheduled)
            self._lane = self.lanes.for_batch(limits.rows) if overdue is None else overdue
        return self._lane

    def settle(self, reused: Mapping[int, int], refused: Mapping[int, str]) -> None:
        """What the engine did with the plan; requests in neither mapping wait on as if they had not been named.

        ``reused``: admitted id -> tokens its match found; ``refused``: id -> reason.
        """
        self._scheduled += self._index.settle(list(reused.items()), list(refused))
        if reused:
            self._admitted += len(reused)
            self._digest = crc32(array("q", (self._scheduled, *reused, *reused.values())), self._digest)
            self._recent.append(self.decisions)
        self._refused += len(refused)
        if self.lanes is not None:
            self.lanes.admitted(reused)

    def plan_decode(self, limits: Limits, residents: Sequence[Resident] = ()) -> Decode:
        """The rows that decode, sorted by family: all of them, unless ``residents`` are given to choose from.

        O(rows log rows).

        :param residents: every running row, oldest first.
        """
        rows, shared = self._index.rows_by_family()
        if not residents:
            return Decode(rows, [], [], shared)
        view = self.view()._replace(residents=residents)
        return in_family_order(self.selector.select(view, limits) or fit(residents, limits), rows, shared)

    def observe(self, steps: Iterable[Step]) -> None:
        """Feeds measured steps to gate and selector, in order."""
        for step in steps:
            self.gate.observe(step)
            self.selector.observe(step)

    def shared_kv(self, only: Collection[int] | None = None) -> int:
        """Published KV tokens of running rows, counted for each row that has them but the first.

        :param only: ids of the rows that count; None: all.
        """
        if only is None:
            stats = self._index.stats()
            return int(stats["total_kv"] - stats["distinct_kv"])
        total = common = 0
        for row, shared in zip(*self._index.rows_by_family(), strict=True):
            common = min(common, shared)  # with the last row that counted
            if row in only:
                total += common
                common = self.settings.kv_capacity
        return total

    def bound_waits(self, tokens: int) -> None:
        """Another ``Settings.max_wait_tokens``, from the next pass on."""
        self._max_wait = tokens
        self._index.set_max_wait(tokens)

    def forget(self) -> None:
        """The engine dropped its cache."""
        self._index.forget()

    def change_gate(self, settings: Settings) -> None:
        """Another gate from the next pass on; nothing else of ``settings`` may differ."""
        self.settings = settings
        self.gate = gate_of(settings)

    def succeed(self, other: SchedulerCore) -> None:
        """Go on with the clock, the counts, the bound and, if it has the same name, the gate of another core.

        After what waits and runs was handed over.
        """
        self._scheduled = other._scheduled
        self.bound_waits(other._max_wait)
        self._admitted, self._stops = other._admitted, other._stops
        self._barrier_waits, self._refused = other._barrier_waits, other._refused
        self._digest, self._recent = other._digest, other._recent
        if other.selector.name == self.selector.name:
            self.selector = other.selector
        if other.gate.name == self.settings.gate:
            self.gate = other.gate
        if self.lanes is not None and other.lanes is not None:
            self.lanes.succeed(other.lanes)

    def families(self, most: int = 12) -> dict[str, Any]:
        """The ``most`` largest families of requests, and how many there are, in plain values.

        ``oldest`` is the id of a family's oldest waiting request. O(requests) at worst: not for every pass.
        """
        largest, waiting, running, alone = self._index.families(most)
        names = ("waiting", "running", "tokens", "oldest")
        return {
            "families": [dict(zip(names, family, strict=True)) for family in largest],
            "families_waiting": waiting,
            "families_running": running,
            "waiting_alone": alone,
        }

    def held_for(self) -> dict[int, int]:
        """For each running row that others are held back for: how many they are."""
        return dict(self._index.held_for())

    def check_integrity(self) -> None:
        """Raises RuntimeError with the first invariant that does not hold. O(everything)."""
        self._index.check_integrity()

    def view(self) -> View:
        """The running batch as gates see it. O(rows log rows)."""
        order, shared = self._index.rows_by_family()
        stats = self._index.stats()
        return View(
            order,
            shared,
            total_kv=stats["total_kv"],
            distinct_kv=stats["distinct_kv"],
            tip_chunks=stats["tip_chunks"],
            waiting=stats["waiting"],
            held=stats["held"],
        )

    def state(self) -> dict[str, Any]:
        """Figures for operators, in plain values.

        ``oldest_tokens`` were scheduled since the oldest waiting request arrived; ``barrier_waits`` counts each request
        once for each pass that held it back, ``stops`` the passes that the gate cut short, ``refused`` the planned
        requests that the engine did not take.
        """
        stats = self._index.stats()
        of_index = (
            *("waiting", "held", "running", "tip_chunks"),
            *("total_kv", "distinct_kv", "cached_tokens", "nodes", "bytes"),
        )
        oldest = stats["oldest"]
        return {name: stats[name] for name in of_index} | {
            "oldest_tokens": 0 if oldest is None else self._scheduled - oldest,
            "admitted": self._admitted,
            "stops": self._stops,
            "barrier_waits": self._barrier_waits,
            "refused": self._refused,
            "max_wait_tokens": self._max_wait,
            "decisions_digest": self._digest,
            "scheduled_tokens": self._scheduled,
            **(self.lanes.state() if self.lanes is not None else {}),
        }
