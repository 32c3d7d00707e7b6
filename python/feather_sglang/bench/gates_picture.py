"""The picture of ``feather bench gates``: what each gate has lost against the best fixed one, step by step."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feather_sglang.bench.picture import save

_COLOURS = {"never": "#9aa5ad", "static": "#5b6770", "ucb": "#e0a030", "q": "#d95f30", "model": "#1b7f79"}
_STYLES = {"never": "--", "static": ":", "ucb": "-", "q": "-.", "model": "-"}


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str) -> None:
    """Write the picture, 8 inches wide (1,200 pixels as PNG), to each of ``paths``; their suffixes name the formats."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    surfaces = list(dict.fromkeys(row["surface"] for row in report["rows"]))
    columns = 4
    lines = -(-len(surfaces) // columns)
    with pyplot.rc_context({"font.size": 7, "axes.titlesize": 7.5, "svg.hashsalt": "feather"}):
        figure, all_axes = pyplot.subplots(
            lines, columns, figsize=(8, 0.9 + 1.9 * lines), layout="constrained", squeeze=False
        )
        for axes, surface in zip(all_axes.flat, surfaces, strict=False):
            rows = [row for row in report["rows"] if row["surface"] == surface]
            for row in rows:
                gate = row["gate"]
                axes.plot(
                    *zip(*row["regret_steps"], strict=True), _STYLES[gate], color=_COLOURS[gate], lw=1.2, label=gate
                )
            axes.set_title(textwrap.fill(rows[0]["what"], 30))
            axes.set_yscale("symlog", linthresh=20)
            axes.axhline(0, color="#cccccc", lw=0.6, zorder=0)
            axes.spines[["top", "right"]].set_visible(False)
        handles, labels = all_axes.flat[0].get_legend_handles_labels()
        for axes in list(all_axes.flat)[len(surfaces) :]:
            axes.axis("off")
        where = list(all_axes.flat)[len(surfaces)] if len(surfaces) < lines * columns else figure
        where.legend(handles, labels, loc="center", frameon=False)
        figure.supxlabel("decode steps", fontsize=7.5)
        figure.supylabel("regret: steps of the best fixed gate lost", fontsize=7.5)
        figure.suptitle("\n".join(textwrap.fill(line, 130) for line in subtitle.splitlines()), fontsize=7.5)
        save(figure, paths)
