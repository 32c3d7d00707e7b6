"""The picture of ``feather bench overhead``, over the length of the queue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feather_sglang.bench.picture import canvas, save

_COLOURS = {1_000: "#9ecae1", 4_000: "#4292c6", 10_000: "#08519c", 32_000: "#08193a"}
_OURS, _SHIPPED = "#1b7f79", "#d95f30"


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str) -> None:
    """Write the picture, 8 inches wide (1,200 pixels as PNG), to each of ``paths``; their suffixes name the formats."""
    from matplotlib import ticker

    with canvas() as pyplot:
        figure, (times, passes, steps) = pyplot.subplots(1, 3, figsize=(8, 3.4), layout="constrained")
        _times(times, report)
        _over_queue(passes, report, "lpm_pass_over_form100", "-")
        passes.set_title("LPM pass ÷ batch of 100")
        _over_queue(steps, report, "whole_step", "-")
        _over_queue(steps, report, "whole_step_ceiling", ":")
        steps.plot([], [], ":", color="grey", label="right: the ceiling")
        steps.set_title("Whole step ÷ ours, both with\nthe matches of admission")
        queues = sorted({row["waiting"] for row in report["rows"]})
        labels: dict[str, Any] = {}
        for axes in (times, passes, steps):
            axes.set(xscale="log", yscale="log", xlabel="waiting requests")
            shown = [waiting for waiting in queues if axes is times or waiting < 100_000]
            axes.set_xticks(shown, [f"{waiting:,}" for waiting in shown])
            if axes is not times:
                axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axes.minorticks_off()
            axes.margins(0.1)
            axes.grid(axis="y", lw=0.4, color="#dddddd")
            axes.spines[["top", "right"]].set_visible(False)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            handles, names = axes.get_legend_handles_labels()
            labels |= dict(zip(names, handles, strict=True))
        figure.legend(
            labels.values(), labels, loc="outside lower center", ncols=4, frameon=False, fontsize=7, handlelength=2
        )
        save(figure, paths, subtitle)


def _times(axes: Any, report: Mapping[str, Any]) -> None:
    """Ours is drawn for every length of prompts: it does not depend on it."""
    lengths = sorted({row["tokens"] for row in report["rows"]})
    for tokens in lengths:
        rows = [row for row in report["rows"] if row["tokens"] == tokens]
        for name, style, colour, label in (
            ("lpm (rust tree)", "o-", _COLOURS.get(tokens), f"{tokens:,} tokens a prompt"),
            ("lpm as shipped (rust tree)", "s--", _SHIPPED, "left: LPM as shipped" if tokens == lengths[-1] else None),
            ("form", "D-", _OURS, "left: ours, a batch of 100" if tokens == lengths[-1] else None),
        ):
            points = [(row["waiting"], row["us"][name][1]) for row in rows if name in row["us"]]
            if points:
                axes.plot(*zip(*sorted(points), strict=True), style, color=colour, label=label, markersize=3, lw=1)
    axes.set_title("A pass of LPM, and of ours, µs of CPU")


def _over_queue(axes: Any, report: Mapping[str, Any], ratio: str, style: str) -> None:
    lines: dict[int, list[tuple[int, float]]] = {}
    for key, value in report["ratios"][ratio].items():
        tokens, waiting = (int(part[2:]) for part in key.split(","))
        lines.setdefault(tokens, []).append((waiting, value))
    for tokens, points in sorted(lines.items()):
        label = f"{tokens:,} tokens a prompt" if style == "-" else None
        marker = "o" if style == "-" else "_"
        xs, ys = zip(*sorted(points), strict=True)
        axes.plot(xs, ys, style, color=_COLOURS.get(tokens), label=label, marker=marker, markersize=3, lw=1)
