"""The loop of a simulated engine around the real scheduler core, or around a policy of SGLang's own.

It does what SGLang's scheduler does under overlap: a pass admits what the core plans, prefills it and lets decode
stand, or else decodes every row. The result of a launch is there two passes later: only then can be reused what a
prefill computed, is known what a step took, and gives a row that ended its place and its KV back. KV for the whole
output is set aside on admission, so no row is ever retracted. A pass costs O(what changed), a decode step O(rows that
finish).
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from feather_sglang.core.interface import Admissions, Limits, Phase, Row, Step
from feather_sglang.simulate.cost import Batch, Cost
from feather_sglang.simulate.pool import Pool
from feather_sglang.simulate.workload import Arrival, Job, Source

RESULT_PASSES = 2
"""Passes from the launch of a step until its result is known to the scheduler: overlap."""
GROWTH_PASSES = 16
"""Passes between two reports of what rows generated, as in the SGLang adapter."""
_TOKENS = memoryview(array("q", bytes(8 << 10)))


@dataclass(frozen=True, slots=True)
class Machine:
    """What the engine has."""

    rows: int
    """Most rows of a batch."""
    kv_tokens: int
    prefill_tokens: int = 8192
    """Prompt tokens of one pass; a longer prompt is chunked."""
    level_tokens: int = 64
    """Tokens of a chunk of the index and of the cache."""


class Policy(Protocol):
    """What schedules: ``core.scheduler.SchedulerCore`` as it serves, or ``upstream.Upstream``."""

    @property
    def scheduled_tokens(self) -> int: ...
    def enqueue(self, request: Arrival) -> None: ...
    def leave(self, id: int, produced: int | None) -> None: ...
    def begin(self, changed: Sequence[Row], alive: Sequence[int]) -> None: ...
    def plan_admissions(self, limits: Limits) -> Admissions: ...
    def settle(self, reused: Mapping[int, int], refused: Mapping[int, str]) -> None: ...
    def observe(self, steps: Iterable[Step]) -> None: ...


class Pass(NamedTuple):
    """What a pass did."""

    kind: str
    """``prefill``, ``decode``, or ``idle``."""
    seconds: float
    """True cost, without noise."""
    tokens: int
    """Tokens generated."""
    batch: Batch
    computed: int
    admitted: int
    stop: str | None


class Served(NamedTuple):
    """A request that has finished. Times in seconds; ages in scheduled tokens."""

    job: Job
    arrived: float
    first_token: float
    finished: float
    ttft_tokens: int
    """Tokens that the engine computed and generated from its arrival until its first token was there."""
    computed: int
    """Prompt tokens that were prefilled for it."""


class _Row:
    __slots__ = (
        *("arrived", "computed", "decodes", "ended", "first", "job"),
        *("left", "published", "scheduled", "since", "told", "ttft"),
    )

    def __init__(self, job: Job, arrived: float, scheduled: int) -> None:
        self.job = job
        self.arrived = arrived
        self.scheduled = scheduled
        """Tokens that had been scheduled when it arrived."""
        self.ttft = 0
        self.computed = 0
        self.left = 0
        """Prompt tokens still to prefill."""
        self.first = 0.0
        self.since = 0
        """The engine's count of decode steps when its first token came."""
        self.told = 0
        """Output tokens that the core knows of."""
        self.published = 0
        """Prompt tokens that the core knows to be published."""
        self.decodes = False
        """Whether the core knows that its prompt is computed."""
        self.ended = False
        """Its last step was launched: it decodes no more, and its result is not known."""


class Engine:
    """One simulated engine.

    :param core: with chunks of ``machine.level_tokens`` and a KV capacity of ``machine.kv_tokens``.
    :param pool: of ``machine``; None: a new one. A policy may look into it.
    :param chunk_limit: from what a chunked prompt lacks and what a pass may prefill to how much of it is computed.
    :param noise: from a true time in seconds to the one that the core is told.
    :param episode: steps that the core is told of at a time.
    :param expected: the output tokens that a request says it will generate; None: it does not say.
    """

    def __init__(
        self,
        core: Policy,
        source: Source,
        cost: Cost,
        machine: Machine,
        *,
        pool: Pool | None = None,
        chunk_limit: Callable[[int, int], int] = lambda left, budget: budget,
        noise: Callable[[float], float] = lambda seconds: seconds,
        episode: int = 1,
        expected: Callable[[Job], int | None] = lambda job: None,
        keep_served: bool = False,
    ) -> None:
        self.core = core
        self.cost = cost
        self.machine = machine
        self.pool = Pool(machine.kv_tokens, machine.level_tokens) if pool is None else pool
        self.now = 0.0
        self.decode_steps = 0
        self.scheduled = 0
        """Tokens computed and generated so far: a clock that is the same for every policy and cost."""
        self.served: list[Served] = []
        """Finished requests, if ``keep_served``."""
        self.finished = 0
        self._source = source
        self._chunk_limit = chunk_limit
        self._noise = noise
        self._episode = episode
        self._expected = expected
        self._keep_served = keep_served
        self._waiting: dict[int, tuple[Job, float, int]] = {}
        self._rows: dict[int, _Row] = {}
        self._decoding = 0
        self._ends: dict[int, list[_Row]] = {}
        """Decode step after which rows finish."""
        self._chunked: _Row | None = None
        self._passes = self._sequence = self._steps = 0
        self._results: deque[tuple[int, Step, list[Row]]] = deque()
        """What becomes known in which pass."""
        self._ended: deque[tuple[int, _Row]] = deque()
        """Rows that leave, and in which pass that becomes known."""
        self._measured: list[Step] = []
        """Known, and not told yet."""
        self._longest: list[tuple[int, int]] = []
        """Heap of (minus KV tokens at decode step 0, id)."""

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._rows)

    @property
    def ended_kv(self) -> int:
        """KV tokens of rows whose end is not known yet."""
        return sum(row.job.length + row.job.output for _, row in self._ended)

    def run(self) -> Iterator[Pass]:
        """Pass after pass, until everything that arrived is served and nothing is to come."""
        while True:
            for job in self._source.due(self.now, len(self._waiting)):
                self._enqueue(job)
            if not self._waiting and not self._rows:
                arrival = self._source.next_arrival()
                if arrival is None:
                    return
                self.now = max(self.now, arrival)
                continue
            yield self._pass()

    def warm(self, jobs: Iterable[Job]) -> None:
        """Serves these one after the other, so that their prefixes are cached; then the clock starts anew."""
        for job in jobs:
            self._enqueue(job)
            while self._waiting or self._rows:
                self._pass()
        self.now, self.decode_steps, self.finished = 0.0, 0, 0
        self.served.clear()
        self._longest.clear()

    def _enqueue(self, job: Job) -> None:
        if job.length + job.output > self.machine.kv_tokens:
            raise ValueError(
                f"request {job.id} needs {job.length + job.output} KV tokens; expected at most {self.machine.kv_tokens}"
            )
        self.core.enqueue(
            Arrival(
                id=job.id,
                length=job.length,
                arrival=(self.core.scheduled_tokens, self._sequence),
                levels=job.levels,
                level_tokens=self.machine.level_tokens,
                reserve=job.output,
                predicted_new=self._expected(job),
                label=str(job.family) if job.family >= 0 else None,
            )
        )
        self._sequence += 1
        self._waiting[job.id] = (job, max(job.arrival, 0.0), self.scheduled)

    def _pass(self) -> Pass:
        self._passes += 1
        core, pool = self.core, self.pool
        changed, steps = self._known()
        self._measured += steps
        if len(self._measured) >= self._episode:
            core.observe(self._measured)
            self._measured.clear()
        core.begin(changed, list(self._rows))
        computed, admitted, stop = 0, 0, None
        budget = self.machine.prefill_tokens
        prefilled: list[_Row] = []
        if self._chunked is not None:
            computed += self._compute(self._chunked, self._chunk_limit(self._chunked.left, budget), prefilled)
        if self._waiting and computed < budget:
            admitted, taken, stop = self._admit(budget - computed, prefilled)
            computed += taken
        pool.evict()
        if prefilled:
            batch = self._batch(len(prefilled))
            seconds = self.cost.prefill(computed)
            tokens = sum(row is not self._chunked for row in prefilled)
            self.now += seconds
            self._tell("prefill", seconds, tokens, computed, batch, prefilled)
            for row in prefilled:
                if row is not self._chunked:
                    self._start(row)
            return Pass("prefill", seconds, tokens, batch, computed, admitted, stop)
        if not self._decoding:  # everybody waits for a prefix whose result is not known yet, or for room
            return Pass("idle", 0.0, 0, self._batch(0), 0, 0, stop)
        batch = self._batch(self._decoding)
        seconds = self.cost.decode(batch)
        self.now += seconds
        self._tell("decode", seconds, batch.rows, 0, batch, [])
        self._decode()
        return Pass("decode", seconds, batch.rows, batch, 0, 0, stop)

    def _known(self) -> tuple[list[Row], list[Step]]:
        """What the core is told in this pass."""
        changed: list[Row] = []
        steps: list[Step] = []
        while self._ended and self._ended[0][0] <= self._passes:
            self._leave(self._ended.popleft()[1])
        while self._results and self._results[0][0] <= self._passes:
            _, step, rows = self._results.popleft()
            changed.extend(rows)
            steps.append(step)
        for row in changed:
            running = self._rows.get(row.id)
            if running is not None:
                running.published, running.decodes = row.published, row.phase is Phase.DECODING
                self.pool.publish(running.job.levels[: row.published // self.machine.level_tokens])
        if self._passes % GROWTH_PASSES == 0:
            for row_id, running in self._rows.items():
                grown = self._generated(running) - running.told if running.decodes and not running.ended else 0
                if grown > 0:
                    running.told += grown
                    changed.append(Row(row_id, Phase.DECODING, running.published, grown=_TOKENS[:grown]))
        return changed, steps

    def _generated(self, row: _Row) -> int:
        return 0 if row.left or not row.first else 1 + self.decode_steps - row.since

    def _admit(self, budget: int, prefilled: list[_Row]) -> tuple[int, int, str | None]:
        """Admits what the core plans: number admitted, tokens computed, why the plan ended."""
        idle = not self._rows and not self._results
        pool, core = self.pool, self.core
        limits = Limits(
            kv_tokens=pool.free,
            rows=self.machine.rows - len(self._rows),
            prefill_tokens=budget,
            chunked=self._chunked is None,
            step=self._steps,
            idle=idle,
        )
        plan = core.plan_admissions(limits)
        reused: dict[int, int] = {}
        refused: dict[int, str] = {}
        computed = 0
        for candidate in plan.order:
            job, arrived, scheduled = self._waiting[candidate.id]
            if computed >= budget:
                break
            matched = pool.match(job.levels)
            tokens = min(matched * pool.level_tokens, job.length - 1)
            needs = job.length - matched * pool.level_tokens + job.output
            if needs > pool.free:
                refused[job.id] = "no room"
                continue
            del self._waiting[job.id]
            row = _Row(job, arrived, scheduled)
            row.published, row.left = matched * pool.level_tokens, job.length - tokens
            self._rows[job.id] = row
            pool.hold(job.levels)
            pool.private += job.length - len(job.levels) * pool.level_tokens
            pool.reserved += job.output
            computed += self._compute(row, budget - computed, prefilled)
            reused[job.id] = tokens
        core.settle(reused, refused)
        return len(reused), computed, plan.stop

    def _compute(self, row: _Row, budget: int, prefilled: list[_Row]) -> int:
        """Prefills what the budget allows of a row, which is chunked if that is not all; the tokens computed."""
        tokens = min(row.left, budget)
        row.left -= tokens
        row.computed += tokens
        self.pool.computed += tokens
        self.scheduled += tokens
        if row.left:
            self._chunked = row
        elif self._chunked is row:
            self._chunked = None
        prefilled.append(row)
        return tokens

    def _tell(self, kind: str, seconds: float, tokens: int, computed: int, batch: Batch, prefilled: list[_Row]) -> None:
        """What this step did becomes known later."""
        rows = []
        for row in prefilled:
            done = min((row.job.length - row.left) // self.machine.level_tokens, len(row.job.levels))
            phase = Phase.PREFILLING if row.left else Phase.DECODING
            rows.append(Row(row.job.id, phase, done * self.machine.level_tokens))
        step = Step(
            seq=self._steps,
            kind=kind,
            seconds=self._noise(seconds),
            tokens=tokens,
            requests=batch.rows,
            total_kv=batch.total_kv,
            distinct_kv=batch.distinct_kv,
            longest_kv=batch.longest_kv,
            computed=computed,
        )
        self._steps += 1
        self._results.append((self._passes + RESULT_PASSES, step, rows))

    def _start(self, row: _Row) -> None:
        """Its prompt is computed, and its first token there."""
        row.first, row.since, row.ttft = self.now, self.decode_steps, self.scheduled - row.scheduled
        self._generate(1)
        if row.job.output <= 1:
            self._finish(row)
            return
        self._decoding += 1
        self._ends.setdefault(self.decode_steps + row.job.output - 1, []).append(row)
        heapq.heappush(self._longest, (self.decode_steps - row.job.length - 1, row.job.id))

    def _decode(self) -> None:
        self.decode_steps += 1
        self.scheduled += self._decoding
        self._generate(self._decoding)
        for row in self._ends.pop(self.decode_steps, ()):
            self._decoding -= 1
            self._finish(row)

    def _generate(self, tokens: int) -> None:
        self.pool.private += tokens
        self.pool.reserved -= tokens

    def _finish(self, row: _Row) -> None:
        """It has generated its last token. What it alone holds is set aside until that is known."""
        job, pool = row.job, self.pool
        row.ended = True
        pool.publish(job.levels)
        pool.release(job.levels)
        alone = job.length + job.output - len(job.levels) * pool.level_tokens
        pool.private -= alone
        pool.reserved += alone
        self._ended.append((self._passes + RESULT_PASSES, row))
        self.finished += 1
        if self._keep_served:
            self.served.append(Served(job, row.arrived, row.first, self.now, row.ttft, row.computed))

    def _leave(self, row: _Row) -> None:
        job, pool = row.job, self.pool
        del self._rows[job.id]
        pool.reserved -= job.length + job.output - len(job.levels) * pool.level_tokens
        self.core.leave(job.id, job.output)

    def _batch(self, rows: int) -> Batch:
        pool = self.pool
        while self._longest and ((row := self._rows.get(self._longest[0][1])) is None or row.ended):
            heapq.heappop(self._longest)
        longest = self.decode_steps - self._longest[0][0] if self._longest else 0
        return Batch(rows, pool.total_kv, pool.distinct_kv, pool.shared_kv, longest, pool.reuse_distance())
