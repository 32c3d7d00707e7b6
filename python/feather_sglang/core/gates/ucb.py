"""The contextual bandit of the paper's authors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from feather_sglang.core.gates.buckets import Decision, State, Tabular, read, written


class Ucb(Tabular):
    """UCB1 in each state of ``buckets``, as in the authors' vLLM pull request (vllm-project/vllm #42134).

    Score of an action: its mean reward plus ``C * sqrt(ln(decisions in the state + 1) / n)``; one that was never tried
    scores highest, and a tie adds. It forgets nothing, and C is in tokens per second: right for one size of device.
    """

    name = "ucb"
    C = 200.0

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._table: dict[State, list[float]] = {}
        """Decisions and mean reward of ADD, then of STOP."""

    def _add(self, state: State) -> bool:
        add, add_mean, stop, stop_mean = self._table.get(state, (0, 0.0, 0, 0.0))
        if not add:
            return True
        if not stop:
            return False
        total = math.log(add + stop + 1)
        return add_mean + self.C * math.sqrt(total / add) >= stop_mean + self.C * math.sqrt(total / stop)

    def _learn(self, decisions: Sequence[Decision], following: State | None, reward: float) -> None:
        for state, added in decisions:
            row = self._table.setdefault(state, [0, 0.0, 0, 0.0])
            n = 0 if added else 2
            row[n] += 1
            row[n + 1] += (reward - row[n + 1]) / row[n]

    def state(self) -> dict[str, Any]:
        rows = self._table.values()
        return {
            "states": len(self._table),
            "adds": int(sum(row[0] for row in rows)),
            "stops": int(sum(row[2] for row in rows)),
            "prefers_stop": sum(row[0] > 0 < row[2] and row[3] > row[1] for row in rows),
            "reward": self._reward,
        }

    def dump(self) -> dict[str, Any]:
        return {"table": {written(state): row for state, row in sorted(self._table.items())}}

    def load(self, learned: Mapping[str, Any]) -> None:
        self._table = read(learned.get("table", ()), 4)
