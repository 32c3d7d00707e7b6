"""What the runs of ``feather bench gates`` say: how soon a gate is near the best fixed one, and how near at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from feather_sglang.bench.gates_runs import Surface, Trajectory
from feather_sglang.bench.results import Circumstances
from feather_sglang.core.settings import GATES

SCHEMA = {"name": "feather bench gates", "version": 1}
WINDOW, NEAR = 300, 0.95
POINTS = 100
"""Of a line of regret."""

Runs = Mapping[str, Sequence[Trajectory]]
"""By gate: one trajectory a seed."""


def report(runs: Mapping[str, Runs], surfaces: Sequence[Surface], circumstances: Circumstances) -> dict[str, Any]:
    """The JSON object. ``runs``: by surface.

    The best fixed gate is that of the highest mean rate over the seeds; a drift counts from its second half on, against
    the best of that half. ``steps_to_5pct``: the first decode step from which the rate over every later window of 300
    steps is at least 0.95 of the best's over the same windows (mean of paired ratios), None: never;
    ``final_ratio_to_best``: the same ratio over the last two windows together.
    """
    rows: list[dict[str, Any]] = []
    gates: dict[str, dict[str, Any]] = {name: {} for name in GATES}
    for surface in surfaces:
        of_surface = runs[surface.name]
        half = len(of_surface["never"][0].seconds) // 2
        start = half if surface.drifts else 0
        sums = {gate: _sums(of_gate, start) for gate, of_gate in of_surface.items()}
        means = {gate: float(np.mean(total[1][:, -1] / total[0][:, -1])) for gate, total in sums.items()}
        best = max((gate for gate in means if gate not in ("static", "ucb", "q", "model")), key=means.__getitem__)
        for gate in GATES:
            near, worst = _near(sums[gate], sums[best])
            final = float(np.mean(_rates(sums[gate], 2 * WINDOW)[:, -1] / _rates(sums[best], 2 * WINDOW)[:, -1]))
            gates[gate][surface.name] = {"steps_to_5pct": near, "final_ratio_to_best": final}
            rows.append(
                {
                    "gate": gate,
                    "surface": surface.name,
                    "what": surface.what,
                    "best_fixed": best,
                    "tokens_per_second": means[gate],
                    "best_tokens_per_second": means[best],
                    "ratio_to_never": means[gate] / means["never"],
                    "worst_ratio_after_300": worst,
                    "stops": float(np.mean([run.stops for run in of_surface[gate]])),
                    "regret_steps": _regret(sums[gate], sums[best]),
                    **gates[gate][surface.name],
                }
            )
    return {"schema": SCHEMA, **asdict(circumstances), "rows": rows, "gates": gates}


def _sums(of_gate: Sequence[Trajectory], start: int) -> tuple[Any, Any]:
    """Seconds and tokens up to each step from ``start`` on; (seeds, steps + 1)."""
    return tuple(
        np.pad(np.cumsum(np.array([getattr(run, name)[start:] for run in of_gate], float), axis=1), ((0, 0), (1, 0)))
        for name in ("seconds", "tokens")
    )  # type: ignore[return-value]


def _rates(sums: tuple[Any, Any], window: int) -> Any:
    """Tokens per second over every window: (seeds, windows)."""
    seconds, tokens = sums
    return (tokens[:, window:] - tokens[:, :-window]) / (seconds[:, window:] - seconds[:, :-window])


def _near(sums: tuple[Any, Any], best: tuple[Any, Any]) -> tuple[int | None, float]:
    """From which step on no window is far; and the worst of those that begin at step 300 or later."""
    ratios = np.mean(_rates(sums, WINDOW) / _rates(best, WINDOW), axis=0)
    far = np.flatnonzero(ratios < NEAR)
    first = int(far[-1]) + 1 if len(far) else 0
    return first if first < len(ratios) else None, float(np.min(ratios[WINDOW:]))


def _regret(sums: tuple[Any, Any], best: tuple[Any, Any]) -> list[list[float]]:
    """Points (step, steps of the best that the gate has lost until then), mean over the seeds.

    Lost is what the gate took longer than the best did, on the same seed, for as many tokens; of tokens that the best
    did not come to, at its mean rate.
    """
    lost = []
    for seconds, tokens, best_seconds, best_tokens in zip(*sums, *best, strict=True):
        beyond = np.maximum(tokens - best_tokens[-1], 0.0) * best_seconds[-1] / best_tokens[-1]
        ahead = seconds - np.interp(tokens, best_tokens, best_seconds) - beyond
        lost.append(ahead * (len(best_seconds) - 1) / best_seconds[-1])
    mean = np.mean(lost, axis=0)
    at = np.linspace(0, len(mean) - 1, POINTS).astype(int)
    return [[int(i), round(float(mean[i]), 2)] for i in at]


def render(result: Mapping[str, Any]) -> str:
    """The table: a line a surface, a column a gate."""
    surfaces = list(dict.fromkeys(row["surface"] for row in result["rows"]))
    lines = [["surface", "best fixed", *GATES]]
    for surface in surfaces:
        rows = {row["gate"]: row for row in result["rows"] if row["surface"] == surface}
        cells = [
            f"{row['final_ratio_to_best']:.3f} {'-' if row['steps_to_5pct'] is None else row['steps_to_5pct']:>5}"
            for row in (rows[gate] for gate in GATES)
        ]
        lines.append([surface, rows["never"]["best_fixed"], *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([table[0], "-" * max(map(len, table)), *table[1:]])
