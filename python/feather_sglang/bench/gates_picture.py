"""The picture of ``feather bench gates``: what each gate has lost against the best fixed one, step by step."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feather_sglang.bench.picture import canvas, save

_COLOURS = {"never": "#5b6770", "static": "#8a4fbf", "ucb": "#e0a030", "q": "#d95f30", "model": "#1b7f79"}
_STYLES = {"never": "--", "static": ":", "ucb": "-", "q": "-.", "model": "-"}
_WIDTHS = {"model": 2.0, "static": 1.6}
LINEAR = 20
"""Steps up to which the scale is linear; beyond, logarithmic."""
_TICKS = (-1000, -100, -20, -10, 0, 10, 20, 100, 1000, 10_000)


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str) -> None:
    """Write the picture, 8 inches wide (1,200 pixels as PNG), to each of ``paths``; their suffixes name the formats."""
    surfaces = list(dict.fromkeys(row["surface"] for row in report["rows"]))
    columns = 4
    lines = -(-len(surfaces) // columns)
    with canvas(7.5) as pyplot:
        figure, all_axes = pyplot.subplots(
            lines, columns, figsize=(8, 0.9 + 2.0 * lines), layout="constrained", squeeze=False
        )
        for axes, surface in zip(all_axes.flat, surfaces, strict=False):
            rows = [row for row in report["rows"] if row["surface"] == surface]
            for row in rows:
                gate = row["gate"]
                steps, lost = zip(*row["regret_steps"], strict=True)
                axes.plot(steps, lost, _STYLES[gate], color=_COLOURS[gate], lw=_WIDTHS.get(gate, 1.1), label=gate)
            axes.set_title(f"{textwrap.fill(rows[0]['what'], 28)}\nbest fixed: {rows[0]['best_fixed']}")
            axes.set_yscale("symlog", linthresh=LINEAR)
            axes.set_yticks([tick for tick in _TICKS if axes.get_ylim()[0] <= tick <= axes.get_ylim()[1]], minor=False)
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.minorticks_off()
            axes.axhline(0, color="#222222", lw=0.6, zorder=0)
            axes.spines[["top", "right"]].set_visible(False)
        for axes in list(all_axes.flat)[len(surfaces) :]:
            axes.axis("off")
        handles, labels = all_axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
        for axes in all_axes[-1]:
            axes.set_xlabel("decode steps")
        figure.supylabel("lost against the best fixed gate, in its steps (lower is better)", fontsize=8)
        save(figure, paths, subtitle)
