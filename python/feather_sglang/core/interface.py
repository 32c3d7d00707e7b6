"""What crosses between an engine and the scheduler core.

The core knows requests, tokens, KV lengths and passes. It knows no engine, no torch and no clock, so the SGLang
adapter, a simulator and other engines drive the same code. An engine calls, once a pass and in this order::

    begin(changed rows, ids alive, finished) -> plan_admissions(limits) -> settle(reused, refused)
        -> plan_decode(limits)

``enqueue``, ``leave`` and ``forget`` may come at any time between two passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

Buffer = Any  # an object with the buffer protocol (array('q'), NumPy int64 ...) or a sequence of int


class Phase(IntEnum):
    """Where a request stands. PARKED: alive, its KV kept on device or host, not decoding."""

    WAITING = 0
    PREFILLING = 1
    DECODING = 2
    PARKED = 3


@dataclass(slots=True)
class Request:
    """A request as the engine hands it in, when it enters (or re-enters) the waiting queue.

    Give either ``tokens`` (segments that are hashed one after the other; no copy, no buffer is kept) or ``levels``
    (ready-made cumulative chunk hashes, of ``level_tokens`` tokens each).
    """

    id: int
    """Dense, chosen by the adapter, unique among the requests alive; the same when a retracted request comes back."""
    length: int
    """Tokens in all (prompt, and output so far after a retraction)."""
    arrival: tuple[int, int]
    """(scheduled tokens when it first arrived, sequence number): unique, equal on all ranks, kept on retraction."""
    tokens: Sequence[Buffer] | None = None
    levels: Buffer | None = None
    level_tokens: int = 0
    reserve: int = 0
    """KV tokens the engine sets aside for its output on admission."""
    namespace: tuple[str | None, ...] = ()
    """LoRA id, extra key, cache salt: requests share KV only within one namespace; None differs from ''."""
    shareable: int | None = None
    """Tokens, from the start, that may ever be shared; None: all."""
    leads: bool = True
    """Whether its KV will be published for others (False: nobody is made to wait for it)."""
    max_new: int = 0
    """Output tokens it may generate at most; 0: not known."""
    predicted_new: int | None = None
    """Output tokens it will generate, as whoever sent it says."""


class Row(NamedTuple):
    """A change in what the engine holds of one running request. Rows that did not change need not be told."""

    id: int
    phase: Phase
    published: int
    """Tokens of its prefix whose KV other requests can reuse now; told by the adapter, never inferred."""
    private: int = 0
    """Device tokens that parking it frees and resuming it needs."""
    settled: bool = True
    """Nothing of it is in flight."""
    grown: Buffer | None = None
    """Output tokens not told yet."""
    must_decode: bool = False
    """It is being aborted, or is otherwise not to be held back."""
    batch: int = 0
    """Pipeline micro-batch."""


class Resident(NamedTuple):
    """A running row as it is looked at when rows are chosen: what decodes, sits out, or is parked."""

    id: int
    length: int
    """KV tokens that it attends to, wherever they are."""
    private: int
    """Device tokens that parking it frees, or that resuming it needs, in whole pages."""
    parked: bool = False
    settled: bool = True
    """Nothing of it is in flight: it may be parked."""
    must_decode: bool = False
    """It is being aborted, or is otherwise not to be held back."""


class View(NamedTuple):
    """What gates and selectors see of the running batch."""

    order: Sequence[int]
    """Running rows, depth-first by path: siblings are neighbours."""
    shared: Sequence[int]
    """``shared[i]``: published tokens that row i has in common with row i - 1."""
    total_kv: int
    distinct_kv: int
    tip_chunks: int
    waiting: int
    held: int
    step: int = 0
    """``Limits.step``."""
    overdue: int = 0
    """Of the candidates, the first so many are past the fairness bound: they are admitted whatever a gate says."""
    residents: Sequence[Resident] = ()
    """The same rows, oldest first; only where rows may be chosen."""


@dataclass(slots=True)
class Limits:
    """What this pass may spend. All counts in tokens, but ``rows``."""

    kv_tokens: int
    """Free and evictable KV, after the engine's own reservations."""
    rows: int
    """Requests that may still be admitted."""
    prefill_tokens: int
    """Tokens this pass may prefill."""
    step: int = 0
    """Number of the forward step that this pass leads to, equal on all ranks: its ``Step.seq``."""
    soon_tokens: int = 0
    """KV that rows which finish in flight give back before the next pass."""
    page: int = 1
    """Tokens of a page of the KV pool: what a row takes at a time."""
    host_tokens: int = 0
    """Tokens that may be parked in addition, in one piece or several."""
    host_rows: int = 0
    """Rows that may be parked in addition."""
    link_tokens: int = 0
    """KV that can come back from the host beside the steps, in a second."""
    chunked: bool = True
    """Whether the last request named may exceed ``prefill_tokens``, and be chunked."""
    idle: bool = False
    """No row decodes in this pass, no chunked request, no result in flight."""
    may_stop: bool = True
    """Whether the gate is asked (False for prefill-only work: no decode step would follow)."""
    may_choose_rows: bool = False
    may_park: bool = False
    lane: int | None = None
    """Admit from this lane alone (``core.lanes``); None: the core decides."""


class Candidate(NamedTuple):
    """A request named for admission, with its effect on the batch as formed before it."""

    id: int
    uncomputed: int
    """Tokens it must prefill, as far as the core knows."""
    add_total: int
    """KV tokens it adds to the batch, shared or not."""
    add_distinct: int
    """KV tokens it adds that no running row holds."""
    chunks_before: int
    """Tip depth of the batch before it (chunks common to all running rows)."""
    chunks_after: int
    peers: int
    """Waiting requests that share the tip at ``chunks_after``."""


class Admissions(NamedTuple):
    """The plan of a pass: admit ``order``, in that order, and then nobody else."""

    order: list[Candidate]
    held: int
    """Waiting requests held back because what they need is being prefilled."""
    kept: int
    """Rows kept free for them."""
    skipped: int
    """Requests looked at that did not fit."""
    stop: str | None
    """Why the plan ended before the limits did (for the log); None: it did not."""


class Decode(NamedTuple):
    """Which rows decode, in what order, and what they share."""

    rows: list[int]
    """Depth-first by path: siblings are neighbours."""
    park: list[int]
    """Rows whose private KV goes to the host, before the step."""
    resume: list[int]
    """Parked ones whose KV comes back, before the step and after ``park``."""
    shared: list[int]
    """``shared[i]``: published tokens that row i has in common with row i - 1; ``core.sharing`` makes a plan of it."""
    release: Sequence[int] = ()
    """Rows that give up their KV and go back to the waiting queue: nobody else could go on."""


EPISODE_STEPS = 16
"""Steps that a gate is told of at a time, on a server."""


class Step(NamedTuple):
    """One forward step, as the leader rank timed it (the same data on every rank), told in the order of the steps."""

    seq: int
    """Its number: counts up by one for each step of this scheduler; a gap is a step whose time is not known."""
    kind: str
    """``decode``, ``prefill``, or ``mixed`` (a chunk of a prompt together with decoding rows)."""
    seconds: float
    """From the result of the step before (or from the launch, after a pause) to the result of this one."""
    tokens: int
    """Output tokens that it produced."""
    requests: int
    """Rows in it."""
    total_kv: int
    """KV tokens that its rows attend to, shared ones counted for each row."""
    distinct_kv: int
    """KV tokens that its rows attend to, shared ones counted once; of a ``prefill``, not resolved: ``total_kv``."""
    longest_kv: int
    """KV tokens of its longest row."""
    computed: int = 0
    """Prompt tokens that it prefilled."""
    moved_tokens: int = 0


class Gate(Protocol):
    """Decides how many of the planned candidates to admit. Seeded, and without a clock: equal on every rank."""

    name: str

    def cut(self, view: View, candidates: Sequence[Candidate]) -> int:
        """How many of ``candidates``, which would be admitted one after the other, to admit."""
        ...

    def observe(self, step: Step) -> None:
        """What a step took."""
        ...

    def state(self) -> dict[str, Any]:
        """Figures for operators, in plain values: what it learned and what it would do."""
        ...

    def dump(self) -> dict[str, Any]:
        """What it learned, as JSON has it; empty if it does not learn."""
        ...

    def load(self, learned: Mapping[str, Any]) -> None:
        """Go on from a ``dump``. Raises ValueError if it is not one of this gate."""
        ...


class Selector(Protocol):
    """Decides which rows decode, of those that ``view.residents`` has. Seeded, and without a clock, as a gate."""

    name: str

    def select(self, view: View, limits: Limits) -> Decode | None:
        """Who decodes, is parked and comes back; None: all that fit."""
        ...

    def observe(self, step: Step) -> None:
        """What a step took."""
        ...

    def state(self) -> dict[str, Any]:
        """Figures for operators, in plain values."""
        ...


class Core(Protocol):
    """The scheduler core as an engine adapter sees it."""

    gate: Gate
    selector: Selector

    @property
    def scheduled_tokens(self) -> int: ...
    @property
    def decisions(self) -> tuple[int, int]: ...
    def made(self, admitted: int, digest: int) -> bool: ...
    @property
    def wants_steps(self) -> bool: ...
    def shared_kv(self, only: Collection[int] | None = None) -> int: ...
    def enqueue(self, request: Request) -> None: ...
    def leave(self, id: int, produced: int | None) -> None: ...
    def begin(self, changed: Sequence[Row], alive: Sequence[int], finished: Mapping[int, int] = ...) -> None: ...
    def plan_admissions(self, limits: Limits) -> Admissions: ...
    def settle(self, reused: Mapping[int, int], refused: Mapping[int, str]) -> None: ...
    def plan_decode(self, limits: Limits, residents: Sequence[Resident] = ...) -> Decode: ...
    def observe(self, steps: Iterable[Step]) -> None: ...
    def bound_waits(self, tokens: int) -> None: ...
    def forget(self) -> None: ...
    def check_integrity(self) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def change_gate(self, settings: Any) -> None: ...
    def succeed(self, other: Any) -> None: ...
    def families(self, most: int = 12) -> dict[str, Any]: ...
    def held_for(self) -> dict[int, int]: ...
