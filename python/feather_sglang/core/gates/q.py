"""Q-learning on the states of the paper."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from feather_sglang.core.gates.buckets import Decision, State, Tabular, read, written


class Q(Tabular):
    """Q-learning on ``buckets``; the paper evaluates it and gives no constants.

    Both actions of a state begin at nothing learned, which counts as the mean reward so far. The value of a decision
    moves by ``ALPHA`` towards its reward plus ``GAMMA`` times the value of the best action in the first state of the
    next pass; rewards are divided by their running mean, so that no constant has a unit. Explored is with probability
    ``EPSILON / (1 + decisions / DECAY)``, at least ``LEAST``, from a seeded generator. All but ``LEAST`` were chosen by
    ``feather bench gates --sweep q`` (docs/design/gates.md).
    """

    name = "q"
    ALPHA, GAMMA, EPSILON, DECAY, LEAST = 0.3, 0.97, 0.03, 1000.0, 0.005

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._random = random.Random(seed)
        self._table: dict[State, list[float]] = {}
        """Values of STOP and ADD, and how often each was taken."""
        self._decisions = 0
        self._mean = 0.0
        self._rewards = 0

    def _add(self, state: State) -> bool:
        self._decisions += 1
        if self._random.random() < max(self.EPSILON / (1 + self._decisions / self.DECAY), self.LEAST):
            return self._random.random() < 0.5
        stop, add, _, _ = self._table.get(state, (0.0, 0.0, 0, 0))
        return add >= stop

    def _learn(self, decisions: Sequence[Decision], following: State | None, reward: float) -> None:
        self._rewards += 1
        self._mean += (reward - self._mean) / min(self._rewards, 1000)
        gain = reward / self._mean - 1 if self._mean > 0 else 0.0
        if following is not None:
            stop, add, _, _ = self._table.get(following, (0.0, 0.0, 0, 0))
            gain += self.GAMMA * max(stop, add)
        for state, added in decisions:
            row = self._table.setdefault(state, [0.0, 0.0, 0, 0])
            row[added] += self.ALPHA * (gain - row[added])
            row[2 + added] += 1

    def state(self) -> dict[str, Any]:
        rows = self._table.values()
        return {
            "states": len(self._table),
            "stops": int(sum(row[2] for row in rows)),
            "adds": int(sum(row[3] for row in rows)),
            "prefers_stop": sum(row[0] > row[1] for row in rows),
            "reward": self._reward,
        }

    def dump(self) -> dict[str, Any]:
        return {
            "table": {written(state): row for state, row in sorted(self._table.items())},
            "decisions": self._decisions,
            "mean": self._mean,
        }

    def load(self, learned: Mapping[str, Any]) -> None:
        table = read(learned.get("table", ()), 4)
        try:
            decisions, mean = int(learned["decisions"]), float(learned["mean"])
        except (KeyError, TypeError, ValueError):
            raise ValueError("expected a table, the number of decisions and the mean reward") from None
        self._table, self._decisions, self._mean = table, decisions, mean
        self._rewards = min(decisions, 1000)
