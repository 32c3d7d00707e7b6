"""One of two ranks that share a waiting queue: the core and the leader's ticks, on a simulated engine.

``python -m tests.harness.rank leader|follower DECISIONS SKEW FAULT`` runs until so many requests were admitted. The
leader writes its ticks to its standard output, each with its pass, and the follower reads them from its standard input,
as the broadcast would bring them. At the end both print, to standard error, the number and digest of their admissions,
their passes, ticks and bounds, and what the gate learned. SKEW, in seconds, is added to
every clock. FAULT: ``none``, or what the gate does wrong (``clock``: it reads one; ``hash``: it hashes a string).
"""

from __future__ import annotations

import pickle
import random
import sys
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from feather_sglang.core.interface import Candidate, Limits, Phase, Request, Row, Step, View
from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.core.settings import Settings
from feather_sglang.sglang.pace import Pace
from feather_sglang.sglang.ranks import Ranks
from feather_sglang.sglang.ticks import Tick, Ticks

ROWS = 48
QUEUE = 96
POOL = 16_000
MAX_WAIT = 0.05
"""Seconds; so short that the bound decides something."""


class NoisyGate:
    """Learns the sum of all measured nanoseconds, and draws from a seeded generator: what differs shows at once."""

    name = "noisy"

    def __init__(self, fault: str) -> None:
        self.learned = 0
        self._fault = fault
        self._random = random.Random(12)

    def cut(self, view: View, candidates: Sequence[Candidate]) -> int:
        wrong = {"none": 0, "clock": time.monotonic_ns() >> 4, "hash": hash("feather")}[self._fault]
        return (self.learned + wrong + self._random.randrange(1000)) % 7 % (len(candidates) + 1)

    def observe(self, step: Step) -> None:
        self.learned += int(step.seconds * 1e9)

    def state(self) -> dict[str, Any]:
        return {}

    def dump(self) -> dict[str, Any]:
        return {}

    def load(self, learned: Mapping[str, Any]) -> None:
        pass


@dataclass
class Running:
    length: int
    computed_in: int
    ends_in: int


class Rank:
    """What ``Ticks`` needs of an adapter, and an engine that computes a prompt in one pass and shows it two later."""

    ranks = Ranks(2, "", SimpleNamespace())  # nothing fails here
    failures = 0
    watch = SimpleNamespace(keeper=None)

    def __init__(self, fault: str, skew: float) -> None:
        # Each process draws a key of its own.
        self.settings = Settings(gate="static", kv_capacity=POOL, hash_key=(random.SystemRandom().getrandbits(64), 1))
        self._fault = fault
        self._random = random.Random(5)
        self.core = self._make()
        self.running: dict[int, Running] = {}
        self.lengths: dict[int, int] = {}
        self.passes = self.sent = 0
        self.bounds = 0
        self._clock = lambda: time.monotonic() + skew
        self.ticks = Ticks(self, MAX_WAIT, self._clock)  # type: ignore[arg-type]

    def _make(self) -> SchedulerCore:
        core = SchedulerCore(self.settings)
        core.gate = NoisyGate(self._fault)
        return core

    @property
    def decisions(self) -> tuple[int, int, int]:
        return (0, *self.core.decisions)

    def take_up(self, settings: Settings, learned: dict[str, dict[str, Any]]) -> None:
        self.settings = settings
        self.core = self._make()

    def bound_waits(self, tokens: int) -> None:
        self.bounds += 1
        self.settings = replace(self.settings, max_wait_tokens=tokens)
        self.core.bound_waits(tokens)

    def observe(self, steps: Sequence[Step]) -> None:
        self.core.observe(steps)

    def turn(self) -> None:
        """One turn of the scheduler's loop, after what was received."""
        self.passes += 1
        while len(self.lengths) - len(self.running) < QUEUE:
            self._arrive()
        changed = []
        for id, row in list(self.running.items()):
            if row.ends_in == self.passes:
                self.core.leave(id, 1)
                del self.running[id], self.lengths[id]
            elif row.computed_in + 2 == self.passes:
                changed.append(Row(id, Phase.DECODING, row.length))
        self.core.begin(changed, list(self.running))
        limits = Limits(
            kv_tokens=POOL - sum(row.length for row in self.running.values()),
            rows=ROWS - len(self.running),
            prefill_tokens=2048,
            idle=not self.running,
        )
        plan = self.core.plan_admissions(limits)
        for candidate in plan.order:
            ends = self.passes + self._random.randrange(3, 12)
            self.running[candidate.id] = Running(self.lengths[candidate.id], self.passes, ends)
        self.core.settle({c.id: self.lengths[c.id] - c.uncomputed for c in plan.order}, {})
        self.ticks.launches(self.passes, None)
        self.ticks.ended(self._batch(bool(plan.order)), self)

    def get_num_generated_tokens(self, rows: int) -> int:
        return rows

    def _arrive(self) -> None:
        draw, id = self._random, self.sent
        self.sent += 1
        tokens = array("q", [draw.randrange(40)]) * (64 * draw.randrange(1, 7))
        tokens.extend([1000 + id] * draw.randrange(1, 100))
        self.lengths[id] = len(tokens)
        arrival = (self.core.scheduled_tokens, id)
        self.core.enqueue(Request(id=id, tokens=[tokens], length=len(tokens), arrival=arrival, reserve=16))

    def _batch(self, prefill: bool) -> Any:
        mode = SimpleNamespace(
            is_mixed=lambda: False,
            is_decode=lambda: not prefill,
            is_extend=lambda: prefill,
            is_target_verify=lambda: False,
        )
        return SimpleNamespace(
            forward_mode=mode,
            forward_iter=self.passes,
            after_idle_gap=False,
            launch_ts=self._clock(),
            reqs=self.running,
            seq_lens_cpu=None,
            extend_num_tokens=0,
            decoding_reqs=None,
        )


def lead(rank: Rank, decisions: int) -> None:
    out = sys.stdout.buffer
    while rank.core.decisions[0] < decisions:
        tick = rank.ticks.due(paused=False)
        if tick is not None:
            pickle.dump((rank.passes, tick), out)
            out.flush()
            if rank.passes % 5 != 4:  # otherwise it is lost on the way, and sent again
                rank.ticks.take(tick)
        rank.turn()


def follow(rank: Rank, decisions: int) -> None:
    def read() -> tuple[int, Tick | None]:
        try:
            return pickle.load(sys.stdin.buffer)  # type: ignore[no-any-return]
        except EOFError:
            return (-1, None)

    at, tick = read()
    while rank.core.decisions[0] < decisions:
        while at == rank.passes and tick is not None:
            if rank.passes % 5 != 4:
                rank.ticks.take(tick)
            at, tick = read()
        rank.turn()


def main(role: str, decisions: str, skew: str, fault: str) -> None:
    Pace.LEAST_SPAN = 0.01  # a fast machine is not busy for many seconds
    rank = Rank(fault, float(skew))
    (lead if role == "leader" else follow)(rank, int(decisions))
    sys.stdout.close() if role == "leader" else None
    print(*rank.core.decisions, rank.passes, rank.ticks.seen, rank.bounds, rank.core.gate.learned, file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
