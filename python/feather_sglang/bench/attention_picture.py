"""The picture of ``feather bench attention``: what a step takes, by the length of the prefix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feather_sglang.bench.picture import canvas, save

_LINES = {"torch_native_s": ("torch_native", "#9aa5ad"), "off_s": ("sharing off", "#d95f30"), "on_s": ("on", "#1b7f79")}


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str) -> None:
    """Write the picture, 8 inches wide, to each of ``paths``; their suffixes name the formats.

    A line of panels for each batch, a column for each number of families.
    """
    from matplotlib import ticker

    groups: dict[tuple[int, int], dict[int, Mapping[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault((row["batch"], row["families"]), {})[row["prefix"]] = row
    shown = {key: sorted(rows.items()) for key, rows in groups.items() if len(rows) > 1 and key[0] >= 8}
    batches, families = (sorted(set(sizes)) for sizes in zip(*shown, strict=True))
    with canvas() as pyplot:
        figure, grid = pyplot.subplots(
            len(batches),
            len(families),
            figsize=(8, 1.4 + 1.7 * len(batches)),
            squeeze=False,
            sharex=True,
            sharey=True,
            layout="constrained",
        )
        for line, batch in zip(grid, batches, strict=True):
            for axes, several in zip(line, families, strict=True):
                if (batch, several) not in shown:
                    axes.axis("off")
                    continue
                for key, (label, colour) in _LINES.items():
                    points = [(prefix, row[key] * 1000) for prefix, row in shown[batch, several]]
                    axes.plot(*zip(*points, strict=True), "o-", ms=3, color=colour, label=label)
                axes.set_title(f"{batch} rows, {several} famil{'y' if several == 1 else 'ies'}")
                axes.set(xscale="log", yscale="log")
                axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
                axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
                axes.grid(axis="y", lw=0.4, color="#dddddd")
                axes.spines[["top", "right"]].set_visible(False)
        prefixes = sorted({prefix for rows in shown.values() for prefix, _ in rows})
        grid[0][0].set_xticks(prefixes, [f"{prefix:,}" for prefix in prefixes])
        for axes in grid.flat:
            axes.minorticks_off()
            axes.margins(x=0.09)
        for axes in grid[-1]:
            axes.tick_params(axis="x", labelsize=7)
            axes.set_xlabel("shared prefix, tokens")
        figure.supylabel("CPU time of a decode step, ms", fontsize=8)
        figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
        save(figure, paths, subtitle)
