"""The picture of ``feather bench attention``: what a step takes, by the length of the prefix."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feather_sglang.bench.picture import save

_LINES = {"torch_native_s": ("torch_native", "#9aa5ad"), "off_s": ("sharing off", "#d95f30"), "on_s": ("on", "#1b7f79")}


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str) -> None:
    """Write the picture, 8 inches wide, to each of ``paths``; their suffixes name the formats."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups: dict[tuple[int, int], dict[int, Mapping[str, Any]]] = {}
    for row in report["rows"]:
        groups.setdefault((row["batch"], row["families"]), {})[row["prefix"]] = row
    shown = [key for key, rows in sorted(groups.items()) if len(rows) > 1 and key[0] >= 8]
    with pyplot.rc_context({"font.size": 8, "axes.titlesize": 9, "svg.hashsalt": "feather"}):
        figure, axes = pyplot.subplots(1, len(shown), figsize=(8, 3), squeeze=False, layout="constrained")
        for (batch, families), one in zip(shown, axes[0], strict=True):
            rows = sorted(groups[batch, families].items())
            for key, (label, colour) in _LINES.items():
                ends = [row[key] * 1000 for _, row in rows]
                one.plot([prefix for prefix, _ in rows], ends, marker="o", markersize=3, color=colour, label=label)
            one.set_title(f"{batch} rows, {families} famil{'y' if families == 1 else 'ies'}")
            one.set_yscale("log")
            one.set_xlabel("shared prefix, tokens")
            one.spines[["top", "right"]].set_visible(False)
        axes[0][0].set_ylabel("CPU time of a decode step, ms")
        axes[0][0].legend(frameon=False, fontsize=7)
        figure.suptitle("\n".join(textwrap.fill(line, 130) for line in subtitle.splitlines()), fontsize=8)
        save(figure, paths)
