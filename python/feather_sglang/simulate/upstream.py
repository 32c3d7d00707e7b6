"""SGLang 0.5.23's admission in place of Feather's core: one of its policies orders the queue, its adder takes the head.

``managers/scheduler.py``, ``_get_new_batch_prefill_raw``, and ``managers/schedule_policy.py``, ``PrefillAdder``: in the
order of the queue, until rows, KV or the prompt tokens of a pass are spent. The first request that does not fit ends
admission, and none is tried again until a row has left (``batch_is_full``). KV is counted as the simulated engine does,
for every policy alike: the whole output is set aside, where SGLang estimates it and may retract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from feather_sglang.core.interface import Admissions, Candidate, Limits, Row, Step
from feather_sglang.simulate.pool import Pool, leading
from feather_sglang.simulate.upstream_orders import RULES, Circumstances, Waiting, matched_tokens, sort
from feather_sglang.simulate.workload import Arrival

POLICIES = tuple(RULES)
_NOBODY: Mapping[int, int] = {}


class Upstream:
    """A ``engine.Policy``.

    :param policy: one of ``POLICIES``.
    :param pool: of the engine that it serves; its prefix cache is asked what it holds.
    """

    def __init__(self, policy: str, pool: Pool) -> None:
        if policy not in RULES:
            raise ValueError(f"policy {policy!r}: expected one of {', '.join(POLICIES)}")
        self.policy = policy
        self._pool = pool
        self._queue: list[Waiting] = []
        self._rows: dict[int, Waiting] = {}
        self._labels: Counter[str] = Counter()
        self._named = 0
        self._full = False

    @property
    def scheduled_tokens(self) -> int:
        """SGLang's ``processed_tokens_counter``: of prompts alone."""
        return self._pool.computed

    def enqueue(self, request: Arrival) -> None:
        levels = request.levels if request.levels is not None else ()
        arrived, sequence = request.arrival
        self._queue.append(
            Waiting(request.id, levels, request.length, request.reserve, arrived, sequence, request.label)
        )

    def leave(self, id: int, produced: int | None) -> None:
        row = self._rows.pop(id, None)
        if row is None:
            self._queue = [request for request in self._queue if request.id != id]
            return
        self._full = False
        if row.label:
            self._labels[row.label] -= 1
            if not self._labels[row.label]:
                del self._labels[row.label]

    def begin(self, changed: Sequence[Row], alive: Sequence[int], finished: Mapping[int, int] = _NOBODY) -> None: ...

    def observe(self, steps: Iterable[Step]) -> None: ...

    def chunk_limit(self, left: int, budget: int) -> int:
        """``shortest_prefill_chunk_limit``: what a chunked prompt with ``left`` tokens may take of a pass.

        Under shortest prefill first it leaves room for those that are shorter, one token at least to itself.
        """
        if self.policy != "shortest-prefill-first" or budget < 2:
            return budget
        reserved = 0
        for request in self._queue:
            work = request.length - matched_tokens(request, self._pool)
            if work >= left or reserved + work > budget - 1:
                break
            reserved += work
        return budget - reserved

    def plan_admissions(self, limits: Limits) -> Admissions:
        """Those whom the adder would take."""
        self._named = 0
        if not self._rows:
            self._full = False
        if self._full or limits.rows <= 0:
            return Admissions([], 0, 0, 0, None)
        sort(self.policy, self._queue, Circumstances(self._pool, self._labels, self._pool.computed))
        return Admissions(self._take(limits), 0, 0, 0, None)

    def _take(self, limits: Limits) -> list[Candidate]:
        pool = self._pool
        free, budget = limits.kv_tokens, limits.prefill_tokens
        pinned: set[int] = set()
        """What those named before pin in the cache."""
        taken: list[Candidate] = []
        for request in self._queue:
            if budget <= 0:
                break
            if len(taken) >= limits.rows:
                self._full = True
                break
            matched = pool.match(request.levels)
            held = max(min(pool.held(request.levels), matched), leading(request.levels, pinned))
            needs = request.length + request.reserve - held * pool.level_tokens
            uncomputed = request.length - min(matched * pool.level_tokens, request.length - 1)
            if needs > free:
                self._full = bool(taken or self._rows)
                break
            if uncomputed > budget and not limits.chunked:
                break
            free -= needs
            budget -= uncomputed
            pinned.update(request.levels[:matched])
            taken.append(Candidate(request.id, uncomputed, request.length + request.reserve, needs, 0, 0, 0))
        self._named = len(taken)
        return taken

    def settle(self, reused: Mapping[int, int], refused: Mapping[int, str]) -> None:
        named = self._queue[: self._named]
        self._queue[: self._named] = [request for request in named if request.id not in reused]
        for request in named:
            if request.id in reused:
                self._rows[request.id] = request
                if request.label:
                    self._labels[request.label] += 1
