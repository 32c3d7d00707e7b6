"""Requests for the simulated engine: a trace with arrival times, or a backlog that never ends."""

from __future__ import annotations

import math
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from feather_sglang.core.interface import Request


class Job(NamedTuple):
    """A request before it arrives."""

    id: int
    arrival: float
    """Seconds."""
    levels: array[int]
    """Cumulative hashes of its chunks that others may share; unsigned 64-bit, unique to the prefix."""
    length: int
    """Prompt tokens, at least those of the levels."""
    output: int
    """Tokens it will generate, at least one. The scheduler does not know it."""
    family: int = -1
    """For reports; -1: none."""


@dataclass(slots=True)
class Arrival(Request):
    """A job as a scheduler sees it."""

    label: str | None = None
    """Its family, as a client might send it as ``routing_key``."""


class Source(Protocol):
    """Where requests come from."""

    def due(self, now: float, waiting: int) -> Iterable[Job]:
        """Requests that arrive until ``now`` (seconds), ``waiting`` of them still in the queue."""
        ...

    def next_arrival(self) -> float | None:
        """When the next request arrives; None: none is to come while nothing runs."""
        ...


class Trace:
    """Jobs in order of arrival."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = deque(jobs)

    def due(self, now: float, waiting: int) -> Iterator[Job]:
        while self._jobs and self._jobs[0].arrival <= now:
            yield self._jobs.popleft()

    def next_arrival(self) -> float | None:
        return self._jobs[0].arrival if self._jobs else None


class Backlog:
    """Keeps ``waiting`` requests in the queue: whenever some are admitted, as many arrive. A closed loop in saturation.

    :param jobs: endless.
    """

    def __init__(self, jobs: Iterator[Job], waiting: int) -> None:
        self._jobs = jobs
        self._waiting = waiting

    def due(self, now: float, waiting: int) -> Iterator[Job]:
        for _ in range(self._waiting - waiting):
            yield next(self._jobs)._replace(arrival=now)

    def next_arrival(self) -> float | None:
        return 0.0


OUTPUTS: dict[str, Callable[[random.Random, float], int]] = {
    "fixed": lambda rng, mean: max(1, round(mean)),
    "narrow": lambda rng, mean: rng.randint(max(1, round(0.75 * mean)), max(1, round(1.25 * mean))),
    "uniform": lambda rng, mean: rng.randint(1, max(1, 2 * round(mean) - 1)),
    "geometric": lambda rng, mean: 1 + int(rng.expovariate(1 / max(mean - 1, 1e-9))),
    "lognormal": lambda rng, mean: min(int(16 * mean), max(1, round(rng.lognormvariate(math.log(mean) - 0.5, 1.0)))),
}
"""Output lengths in tokens, of a mean."""


class Families(NamedTuple):
    """Requests of families: each shares a prefix with its siblings and ends in a suffix of its own."""

    prefixes: tuple[int, ...]
    """Tokens that each family shares; 0: its requests share nothing. As many families as entries."""
    suffix: tuple[int, int] = (128, 384)
    """Least and most tokens of a suffix, uniform."""
    output: float = 64.0
    """Mean tokens generated."""
    outputs: str = "geometric"
    """One of ``OUTPUTS``."""
    skew: float = 0.0
    """Families are drawn in proportion to rank ** -skew."""
    common: int = 0
    """Tokens, within the prefix, that all families share: a system prompt."""

    def paths(self, level_tokens: int) -> list[array[int]]:
        """The levels of each family."""
        shared = self.common // level_tokens
        return [
            array("Q", (i if i < shared else (family + 1) << 32 | i for i in range(tokens // level_tokens)))
            for family, tokens in enumerate(self.prefixes)
        ]

    def jobs(self, seed: int, level_tokens: int, rate: float | None = None) -> Iterator[Job]:
        """Endless, the same for a seed. ``rate``: arrivals a second, Poisson; None: all at once."""
        rng = random.Random(seed)
        draw = OUTPUTS[self.outputs]
        weights = [(rank + 1) ** -self.skew for rank in range(len(self.prefixes))]
        paths = self.paths(level_tokens)
        now, id = 0.0, 0
        while True:
            (family,) = rng.choices(range(len(paths)), weights)
            suffix = rng.randint(*self.suffix)
            if rate is not None:
                now += rng.expovariate(rate)
            yield Job(id, now, paths[family], self.prefixes[family] + suffix, draw(rng, self.output), family)
            id += 1
