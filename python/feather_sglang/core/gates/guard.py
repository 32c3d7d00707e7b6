"""Compares a gate with never on a share of episodes, and drops to it if the gate loses."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from feather_sglang.core.gates.regression import Affine
from feather_sglang.core.interface import Candidate, Gate, Step, View

logger = logging.getLogger(__name__)


class Guard:
    """Another gate, and a check that it does no harm.

    Decode steps are counted in rounds of ``ROUND`` episodes; in the last one of a round nothing is stopped. The rate of
    an episode is decode tokens per second, prefill included; its first ``SETTLING`` steps, with the rows of the one
    before, do not count, and no step counts for more than ``LONGEST`` mean steps. After each round the rates of the
    last rounds are compared. If the gate's is more than ``MARGIN`` below that of never, it is dropped, loudly, for a
    number of rounds that doubles from one drop to the next; then it is tried again with what it had learned. Before the
    first step is told, and after ``UNTOLD`` answers without one, the gate is not asked: it would explore for ever, and
    learn nothing. Rank-equal like the steps that it is fed.
    """

    EPISODE, SETTLING, ROUND, ROUNDS = 256, 64, 16, 4
    MARGIN, LONGEST = 0.05, 3.0
    FIRST_PAUSE, LONGEST_PAUSE = 4, 256
    UNTOLD = 1024

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.name = gate.name
        self.dropped: str | None = None
        """Why the gate is not asked at present."""
        self.drops = 0
        self._untold = self.UNTOLD
        """Answers of the gate since a step was told."""
        self._steps = 0
        self._pause = self.FIRST_PAUSE
        self._resume = 0
        self._passes = Affine()
        self._prefill = self._mean = 0.0
        self._sums = {True: [0.0, 0.0], False: [0.0, 0.0]}
        """Tokens and seconds with the gate and with never."""

    @property
    def _asks(self) -> bool:
        told = self._untold < self.UNTOLD
        return told and self.dropped is None and self._steps // self.EPISODE % self.ROUND < self.ROUND - 1

    def cut(self, view: View, candidates: Sequence[Candidate]) -> int:
        if not self._asks:
            return len(candidates)
        self._untold += 1
        return self.gate.cut(view, candidates)

    def observe(self, step: Step) -> None:
        self._untold = 0
        if self._asks:
            self.gate.observe(step)
        if step.kind == "prefill":
            self._prefill += self._passes.observe(step.computed, step.seconds)
            return
        if step.kind == "mixed":
            seconds = self._passes.observe(step.computed, step.seconds)
        else:
            seconds = max(step.seconds, 0.0)
            self._mean += (seconds - self._mean) / min(self._steps + 1, self.EPISODE)
            seconds = min(seconds, self.LONGEST * self._mean)
        if self.dropped is None and self._steps % self.EPISODE >= self.SETTLING:
            sums = self._sums[self._asks]
            sums[0] += step.tokens
            sums[1] += seconds + self._prefill
        self._prefill = 0.0
        self._steps += 1
        if self._steps % (self.EPISODE * self.ROUND) == 0:
            self._compare()

    def _compare(self) -> None:
        """At the end of a round."""
        if self.dropped is not None:
            if self._steps >= self._resume:
                logger.warning("feather: the gate %s is tried again", self.name)
                self.dropped = None
            return
        (tokens, seconds), (never_tokens, never_seconds) = self._sums[True], self._sums[False]
        if seconds and never_seconds and never_tokens:
            ratio = tokens / seconds / (never_tokens / never_seconds)
            if ratio < 1 - self.MARGIN:
                self.drops += 1
                self.dropped = f"{1 - ratio:.1%} fewer tokens per second than without it"
                self._resume = self._steps + self._pause * self.EPISODE * self.ROUND
                self._pause = min(2 * self._pause, self.LONGEST_PAUSE)
                self._sums = {True: [0.0, 0.0], False: [0.0, 0.0]}
                logger.warning("feather: the gate %s is dropped for now: %s", self.name, self.dropped)
                return
            self._pause = self.FIRST_PAUSE
        for sums in self._sums.values():
            sums[:] = [value * (1 - 1 / self.ROUNDS) for value in sums]

    def state(self) -> dict[str, Any]:
        return self.gate.state() | {"dropped": self.dropped, "drops": self.drops}

    def dump(self) -> dict[str, Any]:
        return self.gate.dump()

    def load(self, learned: Mapping[str, Any]) -> None:
        self.gate.load(learned)
