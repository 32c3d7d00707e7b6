"""Whether the longest KV of a batch matters here: learned from the times of decode steps.

The model is ``t = a + b*B + c*T + f*L``: B rows, T KV tokens, L those of the longest row; least squares with
forgetting, non-negative coefficients, errors relative to the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from feather_sglang.core.gates.regression import nonnegative
from feather_sglang.core.interface import Resident, Step

SCALES = (1.0, 1 / 64, 1 / 131_072, 1 / 16_384)
RIDGE = 1e-6
"""Of a feature's own square: directions without evidence stay at zero."""
MEMORY = 1_000
"""Steps after which one counts 1/e."""
WARM = 64
"""Steps before anything is believed."""
CLEARLY = 12.0
"""Gain in log likelihood (times two) that the longest row must bring; chance brings less in 999 cases of 1,000."""


class Cost(NamedTuple):
    """Seconds for a step, and for each row, KV token, and token of the longest row."""

    step: float = 0.0
    row: float = 0.0
    token: float = 0.0
    longest: float = 0.0

    def seconds(self, rows: Sequence[Resident]) -> float:
        """Of a decode step of these rows."""
        lengths = [row.length for row in rows]
        return self.step + self.row * len(rows) + self.token * sum(lengths) + self.longest * max(lengths)


class StepCost:
    """Fits ``Cost``."""

    def __init__(self) -> None:
        self.weight = 0.0
        self.cost = Cost()
        self._square = [[0.0] * 4 for _ in range(4)]
        self._right = [0.0] * 4
        self._answer = 0.0

    def observe(self, step: Step) -> None:
        """:param step: anything but a decode step is passed over."""
        if step.kind != "decode" or step.seconds <= 0 or not step.requests:
            return
        x = [value * scale / step.seconds for value, scale in zip(_features(step), SCALES, strict=True)]
        kept = 1 - 1 / MEMORY
        self.weight = self.weight * kept + 1
        self._answer = self._answer * kept + 1
        for i in range(4):
            self._right[i] = self._right[i] * kept + x[i]
            for j in range(4):
                self._square[i][j] = self._square[i][j] * kept + x[i] * x[j]

    def solve(self) -> Cost:
        """The coefficients; ``longest`` is zero unless it clearly explains what the others do not."""
        if self.weight < WARM:
            return self.cost
        square = [
            [value * (1 + RIDGE) if i == j else value for j, value in enumerate(row)]
            for i, row in enumerate(self._square)
        ]
        full = nonnegative(square, self._right)
        plain = [*nonnegative([row[:3] for row in square[:3]], self._right[:3]), 0.0]
        gain = self.weight * math.log(self._left(plain) / self._left(full))
        found = full if gain > CLEARLY else plain
        self.cost = Cost(*(value * scale for value, scale in zip(found, SCALES, strict=True)))
        return self.cost

    def _left(self, found: list[float]) -> float:
        twice = sum(x * y for x, y in zip(found, self._right, strict=True))
        both = sum(found[i] * self._square[i][j] * found[j] for i in range(4) for j in range(4))
        return max(self._answer - 2 * twice + both, 1e-9 * self._answer, 1e-300)


def _features(step: Step) -> tuple[float, float, float, float]:
    return 1.0, step.requests, step.total_kv, step.longest_kv
