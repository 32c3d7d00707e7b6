"""``feather bench gates --sweep q``: the constants of a gate that learns, chosen on all surfaces together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from itertools import product
from typing import Any

import numpy as np

from feather_sglang.bench.gates_report import WINDOW
from feather_sglang.bench.gates_runs import SURFACES, Trajectory, run
from feather_sglang.bench.results import Circumstances
from feather_sglang.core.gates import make_gate
from feather_sglang.core.gates.q import Q

SCHEMA = {"name": "feather bench gates --sweep", "version": 1}
GRIDS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "q": {
        "ALPHA": (0.03, 0.1, 0.3),
        "GAMMA": (0.0, 0.5, 0.9, 0.97),
        "EPSILON": (0.03, 0.1, 0.3),
        "DECAY": (200.0, 1000.0),
    }
}
"""By gate: the values of its constants, each with each."""
_GATES = {"q": Q}

Constants = tuple[tuple[str, float], ...]


def sweep(
    gate: str, seeds: int, steps: int, order: str, pool: Executor, circumstances: Circumstances
) -> dict[str, Any]:
    """The JSON object: a row for each choice of constants, best first.

    ``rate_to_never``, by surface: decode tokens per second of the last two windows ÷ those of ``never`` on the same
    seeds, mean of the seeds (on the drift surface, so after the drift). ``mean`` and ``worst`` are over the surfaces.
    """
    grid = GRIDS[gate]
    choices: list[Constants] = [tuple(zip(grid, values, strict=True)) for values in product(*grid.values())]
    surfaces = range(len(SURFACES))
    work = list(product([gate], choices, surfaces, range(seeds), [steps], [order]))
    never = list(product(["never"], [()], surfaces, range(seeds), [steps], [order]))
    rates = dict(zip(never + work, pool.map(_rate, never + work, chunksize=4), strict=True))
    rows: list[dict[str, Any]] = []
    for constants in choices:
        ratios = {
            SURFACES[surface].name: float(
                np.mean(
                    [
                        rates[gate, constants, surface, seed, steps, order]
                        / rates["never", (), surface, seed, steps, order]
                        for seed in range(seeds)
                    ]
                )
            )
            for surface in surfaces
        }
        rows.append(
            {
                "constants": dict(constants),
                "in_use": all(getattr(_GATES[gate], name) == value for name, value in constants),
                "mean": float(np.mean(list(ratios.values()))),
                "worst": min(ratios.values()),
                "rate_to_never": ratios,
            }
        )
    rows.sort(key=lambda row: float(row["mean"]), reverse=True)
    return {"schema": SCHEMA, **asdict(circumstances), "gate": gate, "rows": rows}


def render(result: Mapping[str, Any], most: int = 10) -> str:
    """The best rows, and the one in use."""
    rows = result["rows"]
    lines = [f"{'':6}{'mean':>7}{'worst':>7}  constants"]
    for place, row in enumerate(rows, 1):
        if place <= most or row["in_use"]:
            constants = "  ".join(f"{name} {value:g}" for name, value in row["constants"].items())
            used = "  <- in use" if row["in_use"] else ""
            lines.append(f"{place:>4}. {row['mean']:7.3f}{row['worst']:7.3f}  {constants}{used}")
    return "\n".join(lines)


def _rate(work: tuple[str, Constants, int, int, int, str]) -> float:
    gate, constants, surface, seed, steps, order = work
    made = make_gate(gate, seed)
    for name, value in constants:
        setattr(made, name, value)
    chosen = SURFACES[surface]
    return rate_at_the_end(run(chosen, made, seed, steps * (1 + chosen.drifts), order))


def rate_at_the_end(done: Trajectory) -> float:
    """Decode tokens per second of the last two windows."""
    last = slice(-2 * WINDOW, None)
    return sum(done.tokens[last]) / sum(done.seconds[last])
