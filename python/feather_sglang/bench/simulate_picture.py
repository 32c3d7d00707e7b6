"""The picture of ``feather simulate``: throughput, time to first token and computed tokens, one bar a policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feather_sglang.bench.picture import canvas, save

_OURS, _OTHERS, _TAIL = "#1b7f79", "#9aa5ad", "#d95f30"


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str) -> None:
    """Write the picture, 8 inches wide (1,200 pixels as PNG), to each of ``paths``; their suffixes name the formats."""
    rows = report["rows"]
    names = [row["policy"] for row in rows]
    colours = [_OURS if name.startswith("feather") else _OTHERS for name in names]
    with canvas() as pyplot:
        figure, panels = pyplot.subplots(1, 3, figsize=(8, 1.5 + 0.32 * len(rows)), sharey=True, layout="constrained")
        speed, wait, work = panels
        _bars(speed, names, [row["throughput_tok_s"] for row in rows], colours, "{:,.0f}")
        speed.set_title("Output tokens a second")
        tails = [row["ttft_s"]["p99"] for row in rows]
        wait.barh(names, tails, color=colours, height=0.62)
        wait.plot([row["ttft_s"]["mean"] for row in rows], names, "D", color=_TAIL, ms=4)
        _ends(wait, names, tails, "{:.1f}")
        wait.set_title("Time to first token, s\n(bar: p99, diamond: mean)")
        _bars(work, names, [row["prefill_tokens"] / 1e6 for row in rows], colours, "{:.2f}")
        work.set_title("Prompt tokens computed, millions")
        for axes in panels:
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(axis="y", length=0)
        speed.invert_yaxis()
        save(figure, paths, subtitle)


def _bars(axes: Any, names: list[str], widths: list[float], colours: list[str], form: str) -> None:
    axes.barh(names, widths, color=colours, height=0.62)
    _ends(axes, names, widths, form)


def _ends(axes: Any, names: list[str], widths: list[float], form: str) -> None:
    longest = max(widths)
    for name, width in zip(names, widths, strict=True):
        axes.text(width + longest * 0.02, name, form.format(width), va="center", fontsize=7)
    axes.set_xlim(0, longest * 1.22 or 1)
