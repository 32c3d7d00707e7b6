"""A cost profile from the step times in a recording."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from feather_sglang.core.interface import Step
from feather_sglang.simulate.cost import Linear
from feather_sglang.simulate.profiles import Profile, linear
from feather_sglang.simulate.traces.calls import call_of, header, made
from feather_sglang.simulate.traces.lines import TraceError, read_lines

LEAST_STEPS = 20
"""Decode steps without which nothing can be fitted."""
ROUNDS = 12
"""Of reweighting, so that outliers (a pause, another process) do not count."""


class Fit(NamedTuple):
    """A fitted cost, and how well it fits."""

    cost: Linear
    decode_steps: int
    prefill_steps: int
    decode_error: float
    """Median of |predicted - measured| ÷ measured."""
    prefill_error: float | None
    """None: no prefill step was measured, and the price of prefill is that of a decode step and of a row."""
    machine: dict[str, int]


def calibrate(path: Path) -> Fit:
    """Fit decode and prefill steps of a recording.

    :raises TraceError: if it cannot be read, or has not enough steps.
    """
    lines = read_lines(path)
    machine = header(path, lines)
    steps: list[Step] = []
    for line in lines:
        call, argument = call_of(line)
        if call == "observe":
            steps += made(line, lambda told: [Step(*step) for step in told], argument)
    return fit(steps, machine, path)


def fit(steps: Iterable[Step], machine: dict[str, int], path: Path) -> Fit:
    """:raises TraceError: if there are not enough."""
    steps = list(steps)
    decodes = [step for step in steps if step.kind == "decode"]
    prefills = [step for step in steps if step.kind == "prefill" and step.computed]
    if len(decodes) < LEAST_STEPS:
        raise TraceError(
            f"{path} holds the times of {len(decodes)} decode steps; expected at least {LEAST_STEPS}. Record a server "
            "for longer, under load."
        )
    seconds = np.array([step.seconds for step in decodes])
    rows = [(1.0, s.requests, s.total_kv - s.distinct_kv, s.distinct_kv) for s in decodes]
    base, row, reread, distinct = (float(x) for x in _robust(np.array(rows, float), seconds))
    # What is shared costs at most what is not: c * (T - U) + (c + d) * U.
    total, distinct = min(reread, distinct), max(distinct - reread, 0.0)
    prefill_base, prefill_token, prefill_error = base, row, None
    if len(prefills) >= 2:
        measured = np.array([step.seconds for step in prefills])
        prefill_base, prefill_token = (
            float(x) for x in _robust(np.array([(1.0, s.computed) for s in prefills], float), measured)
        )
    cost = Linear(base, row, total, distinct, prefill_base=prefill_base, prefill_token=prefill_token)
    if len(prefills) >= 2:
        prefill_error = _error([cost.prefill(step.computed) for step in prefills], measured)
    predicted = [base + row * s.requests + total * s.total_kv + distinct * s.distinct_kv for s in decodes]
    return Fit(cost, len(decodes), len(prefills), _error(predicted, seconds), prefill_error, machine)


def _robust(factors: Any, seconds: Any) -> Any:
    """Coefficients of at least 0 with small errors, relative to what was measured or to what is predicted, whichever is
    more: least squares, reweighted. So a step that was far too long (another process) counts for little, and one that
    was far too short (only its end was timed) for no more than any other."""
    scale = np.maximum(np.abs(factors).max(axis=0), 1e-12)
    weights = np.full(len(seconds), 1 / max(np.median(seconds), 1e-9))
    found = np.zeros(factors.shape[1])
    for _ in range(ROUNDS):
        found = _not_negative(factors / scale * weights[:, None], seconds * weights) / scale
        predicted = factors @ found
        most = np.maximum(np.maximum(seconds, predicted), 1e-9)
        weights = 1 / most / np.sqrt(np.maximum(np.abs(predicted - seconds) / most, 1e-3))
    return found


def _not_negative(factors: Any, seconds: Any) -> Any:
    """Least squares with coefficients of at least 0: the best over all sets of factors; there are at most four."""
    best, found = float("inf"), np.zeros(factors.shape[1])
    for kept in range(1, 1 << factors.shape[1]):
        columns = [n for n in range(factors.shape[1]) if kept >> n & 1]
        part = np.linalg.lstsq(factors[:, columns], seconds, rcond=None)[0]
        loss = float(np.sum((factors[:, columns] @ part - seconds) ** 2))
        if (part >= 0).all() and loss < best * (1 - 1e-9):
            best, found = loss, np.zeros(factors.shape[1])
            found[columns] = part
    return found


def _error(predicted: Sequence[float], seconds: Any) -> float:
    return float(np.median(np.abs(np.array(predicted) - seconds) / seconds))


def write(fit: Fit, name: str, path: Path) -> None:
    """The profile as ``read`` reads it."""
    cost = {field: getattr(fit.cost, field) for field in _FIELDS}
    path.write_text(json.dumps({"profile": name, "machine": fit.machine, "cost": cost}, indent=2) + "\n")


def read(path: Path) -> Profile:
    """A profile that ``write`` wrote.

    :raises TraceError: if it is none.
    """
    try:
        found = json.loads(path.read_text())
        cost = _linear(found["cost"])
        size = {field: int(found["machine"][field]) for field in ("rows", "kv_tokens", "context", "prefill_tokens")}
        name = str(found["profile"])
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror}): give a file of feather calibrate") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise TraceError(f"{path} is no profile ({what}); expected a file of feather calibrate") from None
    return linear(name, "fitted to a recording", cost, "measured", "measured", "as recorded", **size)


def _linear(cost: dict[str, Any]) -> Linear:
    base, row, total, distinct, prefill_base, prefill_token = (float(cost[field]) for field in _FIELDS)
    return Linear(base, row, total, distinct, prefill_base, prefill_token)


_FIELDS = ("base", "row", "total", "distinct", "prefill_base", "prefill_token")
