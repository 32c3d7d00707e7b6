"""What a decode step costs, learned from steps: least squares with forgetting, and non-negative coefficients.

The model is ``t = a + b*B + c*T + d*U + k*K``: B rows, T KV tokens read, U of them distinct, and K the re-reads that
miss a cache which holds ``edge`` tokens: ``K = (T - U) * max(0, 1 - edge / D)``, where D is the KV that competes for
the cache. The edge is not known: every one of a geometric series is tried, and the one that explains the steps best is
taken, if it explains them clearly better than no knee at all. Errors count relative to the step, since noise grows with
it.

The normal equations are kept, not the steps: an observation is O(series), a solution O(series) of five unknowns.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

EDGES = tuple(round(2048 * 1.5**i) for i in range(14))
"""Tokens of KV that may fit a cache: 2,048 to 398,000."""
ROWS, TOTAL, DISTINCT, MISSED = 1 / 64, 1 / 131_072, 1 / 16_384, 1 / 131_072
"""Scales that bring the features to the order of one."""
RIDGE = 1e-3
"""Of a feature's own square, added to it: directions without evidence stay at zero."""


class Load(NamedTuple):
    """What a decode step has to read."""

    rows: float
    total: float
    distinct: float
    competing: float
    """KV tokens that compete for the cache between two reads of a shared token: families in the batch times their
    prefix."""

    def missed(self, edge: float) -> float:
        """Re-reads that miss a cache of ``edge`` tokens."""
        return max(self.total - self.distinct, 0.0) * (1 - edge / self.competing) if self.competing > edge else 0.0


class Coefficients(NamedTuple):
    """Seconds for a step, and for each row, token read, distinct token and missed re-read."""

    step: float = 0.0
    row: float = 0.0
    total: float = 0.0
    distinct: float = 0.0
    missed: float = 0.0
    edge: float = 0.0
    """KV tokens that fit the cache; without meaning if ``missed`` is zero."""

    def seconds(self, load: Load) -> float:
        return (
            self.step
            + self.row * load.rows
            + self.total * load.total
            + self.distinct * load.distinct
            + self.missed * load.missed(self.edge)
        )


class Regression:
    """Fits ``Coefficients``.

    :param memory: steps after which an observation counts 1/e.
    """

    OUTLIER = 2.5
    """Times its prediction beyond which a single step is cut: a pause of the process, not of the device."""
    RECENT, CHANGE = 24, 0.35
    """Steps, and their mean relative error beyond which, if a new fit with them in it leaves as much, the device has
    changed and the past is forgotten."""
    WARM = 8
    """Steps before any of this."""
    CLEARLY = 8.0
    """Gain in log likelihood (times two) that a knee must bring: its two parameters at 2% of false alarms, and a little
    for the choice among the edges."""

    def __init__(self, memory: int = 1000) -> None:
        self._kept = math.exp(-1 / memory)
        self.coefficients = Coefficients()
        self.noise = 0.0
        """Standard deviation of the relative error."""
        self.changes = 0
        """How often the past was forgotten."""
        self._clear()

    def _clear(self) -> None:
        size = len(EDGES)
        self.weight = 0.0
        """Steps in memory."""
        self._square = [[0.0] * 4 for _ in range(4)]
        self._right = [0.0] * 4
        self._answer = 0.0
        self._cross = [[0.0] * 4 for _ in range(size)]
        self._knee = [0.0] * size
        self._knee_right = [0.0] * size
        self._mean = 0.0
        self._surprise = 0.0
        """Mean of the last relative errors of predictions."""
        self._late = False
        self._last: deque[tuple[Load, float]] = deque(maxlen=self.RECENT)

    def observe(self, load: Load, seconds: float) -> float:
        """A step with this load took so long; what it is taken to have taken, if it stands out."""
        if seconds <= 0:
            return 0.0
        expected = self.coefficients.seconds(load) or self._mean or seconds
        if self.weight >= self.WARM:
            late = seconds > self.OUTLIER * expected
            if late and not self._late:
                seconds = self.OUTLIER * expected
            self._late = late
            self._last.append((load, seconds))
            self._surprise += (max(-1.0, min(1.0, math.log(seconds / expected))) - self._surprise) / self.RECENT
            if abs(self._surprise) > self.CHANGE and len(self._last) == self.RECENT:
                self.solve()
                errors = sorted(math.log(took / self.coefficients.seconds(load)) for load, took in self._last)
                if abs(errors[self.RECENT // 2]) > self.CHANGE:
                    self._change()
                    expected = seconds
                else:
                    self._surprise = 0.0
        self._mean += (seconds - self._mean) / min(self.weight + 1, 64)
        self._add(load, seconds, 1 / max(expected, seconds / self.OUTLIER) ** 2)
        return seconds

    def _change(self) -> None:
        """What was learned of another device, or of another load on it, is of no use."""
        self._clear()
        self.coefficients = Coefficients()
        self.changes += 1

    def _add(self, load: Load, seconds: float, weight: float) -> None:
        kept, square, right = self._kept, self._square, self._right
        x = (1.0, load.rows * ROWS, load.total * TOTAL, load.distinct * DISTINCT)
        for i, xi in enumerate(x):
            line = square[i]
            scaled = xi * weight
            for j in range(i + 1):
                line[j] = line[j] * kept + scaled * x[j]
            right[i] = right[i] * kept + scaled * seconds
        self._answer = self._answer * kept + weight * seconds * seconds
        self.weight = self.weight * kept + 1
        reread = max(load.total - load.distinct, 0.0) * MISSED
        for n, edge in enumerate(EDGES):
            k = reread * (1 - edge / load.competing) if load.competing > edge else 0.0
            cross = self._cross[n]
            if k or self._knee[n]:
                scaled = k * weight
                for i, xi in enumerate(x):
                    cross[i] = cross[i] * kept + scaled * xi
                self._knee[n] = self._knee[n] * kept + scaled * k
                self._knee_right[n] = self._knee_right[n] * kept + scaled * seconds

    def solve(self) -> Coefficients:
        """The coefficients that explain the steps in memory."""
        if self.weight < self.WARM:
            return self.coefficients
        base = [[self._square[max(i, j)][min(i, j)] for j in range(4)] for i in range(4)]
        best = nonnegative(base, self._right)
        left = self._left(best, self._right)
        plain, edge = left, 0.0
        for n in range(len(EDGES)):
            if self._knee[n] <= 1e-12:
                continue
            square = [[*base[i], self._cross[n][i]] for i in range(4)] + [[*self._cross[n], self._knee[n]]]
            right = [*self._right, self._knee_right[n]]
            found = nonnegative(square, right)
            if found[4] > 0 and (unexplained := self._left(found, right)) < left:
                best, left, edge = found, unexplained, float(EDGES[n])
        self.noise = math.sqrt(left / self.weight)
        if edge and self.weight * math.log(plain / left) < self.CLEARLY:
            best, edge = nonnegative(base, self._right), 0.0
        scales = (1.0, ROWS, TOTAL, DISTINCT, MISSED)
        self.coefficients = Coefficients(*(x * scale for x, scale in zip(best, scales, strict=False)))._replace(
            edge=edge
        )
        return self.coefficients

    def _left(self, found: Sequence[float], right: Sequence[float]) -> float:
        """Sum of squared relative errors that is not explained."""
        explained = sum(x * y for x, y in zip(found, right, strict=True))
        return max(self._answer - explained, 1e-9 * self._answer, 1e-300)

    def dump(self) -> dict[str, Any]:
        return {
            "weight": self.weight,
            "square": self._square,
            "right": self._right,
            "answer": self._answer,
            "cross": self._cross,
            "knee": self._knee,
            "knee_right": self._knee_right,
            "mean": self._mean,
        }

    def load(self, learned: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError if it is not a ``dump``."""
        size = len(EDGES)
        square, cross = _table(learned["square"], 4), _table(learned["cross"], size)
        right, knee, knee_right = (_numbers(learned[name], n) for name, n in _VECTORS)
        weight, answer, mean = _numbers([learned[name] for name in ("weight", "answer", "mean")], 3)
        self._clear()
        self._square, self._cross, self._right, self._knee, self._knee_right = square, cross, right, knee, knee_right
        self.weight, self._answer, self._mean = weight, answer, mean
        self.solve()


class Affine:
    """``base + token * n`` seconds of a prefill pass, learned with forgetting; errors count relative to the pass."""

    MEMORY, WARM = 200, 16

    def __init__(self) -> None:
        self._sums = [0.0] * 6
        """Weighted: of 1, n, n^2, t, n t, t^2; and below the passes in memory."""
        self.usual = 0.0
        """Mean seconds of a pass."""
        self._passes = self._usual = 0.0
        """Tokens of a pass. Much smaller ones say nothing of what joining saves: a floor is not a base."""
        self.estimate = 0.0
        """Of the base, in seconds; at least 0."""
        self.base = 0.0
        """Seconds that are there with confidence: two standard errors below the estimate, at least 0."""

    def observe(self, tokens: int, seconds: float) -> float:
        """A pass over so many tokens took so long; what it is taken to have taken, if it stands out."""
        usual = self.usual or seconds
        self._usual += (tokens - self._usual) / min(self._passes + 1, self.WARM)
        self.usual += (seconds - self.usual) / min(self._passes + 1, self.WARM)
        if seconds <= 0 or tokens < self._usual / 2:
            return max(min(seconds, Regression.OUTLIER * usual), 0.0)
        one, n, nn, t, nt, _ = self._sums
        spread = one * nn - n * n
        expected = seconds
        if self._passes >= self.WARM:
            slope = max((one * nt - n * t) / spread, 0.0) if spread > 1e-6 * nn * one else 0.0
            expected = max((t - slope * n) / one, 0.0) + slope * tokens or seconds
            seconds = min(seconds, Regression.OUTLIER * expected)
        weight = 1 / (expected * expected)
        kept = 1 - 1 / self.MEMORY
        new = (1.0, tokens, tokens * tokens, seconds, tokens * seconds, seconds * seconds)
        self._sums = [old * kept + weight * value for old, value in zip(self._sums, new, strict=True)]
        self._passes = self._passes * kept + 1
        self._solve()
        return seconds

    def _solve(self) -> None:
        one, n, nn, t, nt, tt = self._sums
        spread = one * nn - n * n
        if self._passes < self.WARM or spread <= 1e-6 * nn * one:
            self.estimate = self.base = 0.0
            return
        base, slope = (nn * t - n * nt) / spread, (one * nt - n * t) / spread
        noise = max(tt - base * t - slope * nt, 0.0) / self._passes
        self.estimate = max(base, 0.0)
        self.base = max(base - 2 * math.sqrt(noise * nn / spread), 0.0)

    def dump(self) -> dict[str, Any]:
        return {"sums": self._sums, "passes": self._passes}

    def load(self, learned: Mapping[str, Any]) -> None:
        """Raises KeyError, TypeError or ValueError if it is not a ``dump``."""
        sums, (passes,) = _numbers(learned["sums"], 6), _numbers([learned["passes"]], 1)
        self._sums, self._passes = sums, passes
        self._solve()


_VECTORS = (("right", 4), ("knee", len(EDGES)), ("knee_right", len(EDGES)))


def _numbers(values: Sequence[Any], length: int) -> list[float]:
    numbers = [float(value) for value in values]
    if len(numbers) != length or not all(map(math.isfinite, numbers)):
        raise ValueError(f"expected {length} finite numbers")
    return numbers


def _table(rows: Sequence[Sequence[Any]], length: int) -> list[list[float]]:
    if len(rows) != length:
        raise ValueError(f"expected {length} rows")
    return [_numbers(row, 4) for row in rows]


def nonnegative(square: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Least squares from the normal equations, no coefficient negative: those that would be are left out in turn."""
    found = [0.0] * len(right)
    active = [i for i in range(len(right)) if square[i][i] > 0]
    while active:
        part = _solve([[square[i][j] for j in active] for i in active], [right[i] for i in active])
        worst = min(range(len(active)), key=lambda n: part[n] * math.sqrt(square[active[n]][active[n]]))
        if part[worst] >= 0:
            for i, value in zip(active, part, strict=True):
                found[i] = value
            break
        del active[worst]
    return found


def _solve(square: list[list[float]], right: list[float]) -> list[float]:
    """Cholesky; ``RIDGE`` keeps it positive definite."""
    n = len(right)
    lower = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            value = square[i][j] - sum(lower[i][m] * lower[j][m] for m in range(j))
            if i == j:
                lower[i][i] = math.sqrt(max(value + RIDGE * square[i][i], 1e-12 * square[i][i]))
            else:
                lower[i][j] = value / lower[j][j]
    y = [0.0] * n
    for i in range(n):
        y[i] = (right[i] - sum(lower[i][m] * y[m] for m in range(i))) / lower[i][i]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (y[i] - sum(lower[m][i] * x[m] for m in range(i + 1, n))) / lower[i][i]
    return x
