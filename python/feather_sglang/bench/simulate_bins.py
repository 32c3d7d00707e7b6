"""``feather simulate TRACE --bins``: static batches from bins of output length, in theory and through the core."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feather_sglang.bench.results import Circumstances
from feather_sglang.cli.errors import UsageError
from feather_sglang.simulate import bins
from feather_sglang.simulate.traces import read

SCHEMA = {"name": "feather simulate --bins", "version": 1}
REQUESTS = 131_072
LEAST = 16_384
"""Requests for one bin, divided by the number of bins, and at least: batches of a bin differ less the more bins."""
_UNIFORM = re.compile(r"uniform:(\d+),(\d+)")


def measure(trace: Path, counts: list[int], batch: int, limit: int | None) -> list[dict[str, Any]]:
    """A row for each number of bins: c_k in requests a step, by theory and by the core, which knows every output.

    :param trace: whose outputs come equally often, in random order; or ``uniform:LOW,HIGH``.
    :param limit: requests to serve; None: enough for a tenth of a percent or so.
    :raises UsageError: if the range of outputs is none.
    """
    theory, known = _outputs(trace)
    rows = []
    for count in counts:
        wanted = limit or max(REQUESTS // count, LEAST)
        outputs = known * -(-wanted // len(known))  # whole times: their mean is exact
        random.Random(count).shuffle(outputs)
        outputs = outputs[:limit]
        said, served = theory(count, batch), bins.simulated(outputs, count, batch)
        error = served.throughput / said - 1
        rows.append({"bins": count, "theory": said, "simulated": served.throughput, "error": error})
    return rows


def report(rows: list[dict[str, Any]], batch: int, circumstances: Circumstances) -> dict[str, Any]:
    """The JSON object."""
    worst = max(abs(row["error"]) for row in rows)
    return {"schema": SCHEMA, **asdict(circumstances), "batch": batch, "rows": rows, "theory_max_error": worst}


def render(rows: list[dict[str, Any]], batch: int) -> str:
    """The table."""
    lines = [f"Static batches of {batch}, requests a step", "bins    theory      core    error  ÷ one bin"]
    for row in rows:
        gain = row["theory"] / rows[0]["theory"]
        lines.append(
            f"{row['bins']:>4}  {row['theory']:>8.5f}  {row['simulated']:>8.5f}  {row['error']:>+7.3%}  {gain:>9.3f}"
        )
    return "\n".join(lines)


def _outputs(trace: Path) -> tuple[Callable[[int, int], float], list[int]]:
    """c_k of a number of bins and a batch, and the outputs."""
    match = _UNIFORM.fullmatch(str(trace))
    if match is None:
        known = [job.output for job in read(trace).jobs]
        return lambda count, batch: bins.of_sample(known, count, batch), known
    low, high = int(match[1]), int(match[2])
    if not 0 < low <= high:
        raise UsageError(f"{trace}: expected two output lengths of at least 1, the smaller first, as uniform:16,112")
    return lambda count, batch: bins.uniform(low - 0.5, high + 0.5, count, batch), [*range(low, high + 1)]
