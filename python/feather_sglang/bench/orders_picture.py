"""The picture of ``feather bench orders``: how late first tokens come as ``missing`` ages, and by other orders."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feather_sglang.bench.picture import canvas, save

_LINES = {"fcfs": "#5b6770", "lpm": "#e0a030", "hrrn": "#d95f30", "held": "#7a5195"}
_MISSING = "#1b7f79"


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str) -> None:
    """Write the picture, 8 inches wide (1,200 pixels as PNG), to each of ``paths``; their suffixes name the formats."""
    workloads = list(dict.fromkeys(row["workload"] for row in report["rows"]))
    columns = 4
    lines = -(-len(workloads) // columns)
    with canvas(7) as pyplot:
        figure, grid = pyplot.subplots(
            lines, columns, figsize=(8, 1.1 + 2.1 * lines), squeeze=False, layout="constrained"
        )
        for axes, workload in zip(grid.flat, workloads, strict=False):
            rows = {row["arm"]: row for row in report["rows"] if row["workload"] == workload}
            unit = rows["fcfs"]["ttft_tokens"]["p99"]
            for arm, colour in _LINES.items():
                axes.axhline(rows[arm]["ttft_tokens"]["p99"] / unit, color=colour, lw=1.2, ls="--", label=arm)
            swept = [row for arm, row in rows.items() if arm.startswith("missing ")]
            names = [row["arm"].removeprefix("missing ") for row in swept]
            axes.plot(
                names, [row["ttft_tokens"]["p99"] / unit for row in swept], "o-", ms=3, color=_MISSING, label="missing"
            )
            axes.set_title(textwrap.fill(rows["fcfs"]["what"], 30))
            axes.set_ylim(0, min(2.6, axes.get_ylim()[1]))
            axes.tick_params(axis="x", labelrotation=90)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in list(grid.flat)[len(workloads) :]:
            axes.axis("off")
        for axes in grid.flat[max(len(workloads) - columns, 0) : len(workloads)]:
            axes.set_xlabel("ageing of missing, tokens\nper scheduled token")
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
        figure.supylabel("p99 TTFT in scheduled tokens ÷ FCFS's", fontsize=7.5)
        save(figure, paths, subtitle)
