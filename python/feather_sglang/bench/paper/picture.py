"""The picture of ``feather bench paper``: every ratio of every experiment, beside what the claim asks of it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feather_sglang.bench.picture import canvas, save

_COLOURS = {True: "#1b7f79", False: "#d95f30"}
_BESIDE = "#9aa5ad"


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str) -> None:
    """Write the picture, 8 inches wide (1,200 pixels as PNG), to each of ``paths``; their suffixes name the formats."""
    lines: list[tuple[str, Mapping[str, Any], Mapping[str, Any], bool]] = []
    for name, found in report["experiments"].items():
        for asked in (True, False):
            lines += [(name, found, part, asked) for part in found["asked" if asked else "beside"]]
    with canvas(7) as pyplot:
        figure, axes = pyplot.subplots(figsize=(8, 1.0 + 0.25 * len(lines)), layout="constrained")
        labels, before = [], None
        for at, (name, found, part, asked) in enumerate(lines):
            for ratio in part["ratios"]:
                colour = _COLOURS[ratio >= part["least"]] if asked else _BESIDE
                axes.plot(ratio, at, "o", color=colour, ms=4, alpha=0.6, mew=0)
            axes.plot([part["least"]] * 2, [at - 0.35, at + 0.35], color="#222222", lw=1.2)
            title = f"{name}: {found['verdict']}\n" if name != before else ""
            labels.append(title + textwrap.shorten(part["what"], 62, placeholder="..."))
            if before is not None and name != before:
                axes.axhline(at - 0.5, color="#dddddd", lw=0.6)
            before = name
        axes.set_yticks(range(len(lines)), labels)
        axes.set_ylim(len(lines) - 0.4, -0.8)
        axes.set_xscale("log")
        axes.set_xlabel("ratio (log); black: what the claim asks; green: reached, red: not; grey: not asked, beside it")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color="#eeeeee", lw=0.6)
        title = "Claims of the Feather paper, modelled with assumed GPU constants; -cpu and overhead: measured here"
        save(figure, paths, f"{title}\n{subtitle}")
