"""The picture of ``feather bench tie``: live beside simulated, for each load and policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feather_sglang.bench.picture import canvas, save

_LIVE, _SIMULATED = "#1b7f79", "#9aa5ad"


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str) -> None:
    """Write the picture, 8 inches wide (1,200 pixels as PNG), to each of ``paths``; their suffixes name the formats."""
    from matplotlib import ticker

    rows = report["rows"]
    with canvas() as pyplot:
        figure, panels = pyplot.subplots(1, 3, figsize=(8, 1.2 + 0.34 * len(rows)), sharey=True, layout="constrained")
        titles = {
            "steps": "Forward steps",
            "computed": "Prompt tokens computed",
            "ratio_to_fcfs": "Throughput ÷ fcfs's",
        }
        for axes, (name, title) in zip(panels, titles.items(), strict=True):
            for which, colour, shift in (("live", _LIVE, -0.2), ("simulated", _SIMULATED, 0.2)):
                widths = [row[name][which] for row in rows]
                places = [place + shift for place in range(len(rows))]
                axes.barh(places, widths, height=0.38, color=colour, label=which)
                for place, width in zip(places, widths, strict=True):
                    text = f"{width:,}" if isinstance(width, int) else f"{width:.2f}"
                    axes.text(width, place, f" {text}", va="center", fontsize=6.5)
            axes.margins(x=0.2)
            axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            axes.set_title(title)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(axis="y", length=0)
        panels[0].set_yticks(range(len(rows)), [f"{row['load']}, {row['policy']}" for row in rows])
        panels[0].invert_yaxis()
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        save(figure, paths, subtitle)
