"""The picture of ``feather bench length``: bins by how well lengths are predicted, and theory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feather_sglang.bench.length_runs import THEORY
from feather_sglang.bench.picture import canvas, save

_LINES = {
    "oracle": ("#1b7f79", "o-"),
    "noise30": ("#d95f30", "s-"),
    "noise100": ("#e0a030", "^-"),
    "family": ("#7a5195", "D--"),
}
_PANELS = (
    ("lanes", "mean_latency_ratio", "Lanes: mean latency ÷ FCFS"),
    ("lanes", "p99_latency_ratio", "Lanes: p99 latency ÷ FCFS"),
    ("static", "throughput_ratio", "Static batches: throughput ÷ FCFS"),
)


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str) -> None:
    """Write the picture, 8 inches wide (1,200 pixels as PNG), to each of ``paths``; their suffixes name the formats."""
    with canvas(7) as pyplot:
        figure, grid = pyplot.subplots(1, 4, figsize=(8, 3.0), layout="constrained")
        for axes, (mode, figure_of, title) in zip(grid, _PANELS, strict=False):
            bins = report["bins"][mode]
            for predictor, (colour, style) in _LINES.items():
                values = [bins[k][predictor][figure_of] for k in bins]
                axes.plot(list(bins), values, style, color=colour, ms=3, lw=1.1, label=predictor)
            axes.axhline(1.0, color="#9aa5ad", lw=0.8, zorder=0)
            axes.set_ylim(bottom=0)
            axes.set_title(title)
        theory = [row for row in report["rows"] if row["workload"] == "theory"]
        names = [str(row["bins"]) for row in theory]
        grid[3].plot(names, [row["theory"] for row in theory], "-", color="#5b6770", lw=1.1, label="theory")
        grid[3].plot(names, [row["simulated"] for row in theory], "x", color="#1b7f79", ms=5, label="through the core")
        grid[3].set_ylim(bottom=0)
        grid[3].set_title("U[{}, {}]: requests a step".format(*THEORY))
        grid[3].legend(frameon=False, loc="lower right")
        for axes in grid:
            axes.set_xlabel("bins")
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        save(figure, paths, subtitle)
