"""The picture of a sweep: its workloads from left to right, one line an arm."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from feather_sglang.bench.table import reused

_COLOURS = ("#1b7f79", "#d95f30", "#5b6770", "#8e5ea2", "#c9a227", "#3a6ea5")
_MARKS = "os^Dv*XP"
_WIDTH = 18
"""Letters of a label in one line."""


def sweep(report: Mapping[str, Any]) -> tuple[Any, str]:
    """A figure with three panels: speed, time to the first token, reuse; and what its workloads have in common."""
    from matplotlib import pyplot

    on_cpu = report["machine"]["accelerator"] is None
    speed = "tok_per_cpu_s" if on_cpu else "throughput_tok_s"
    panels: list[tuple[str, Callable[[Mapping[str, Any]], Any]]] = [
        ("Tokens per CPU-second" if on_cpu else "Tokens per second", lambda row: row[speed]),
        ("Time to first token, mean (s)", lambda row: row["ttft_s"]["mean"]),
        ("From the cache, % of cacheable", lambda row: 100 * reused(row)),
    ]
    cells = [cell for cell in report["workloads"] if cell["medians"]]
    common, labels = _labels([cell["name"] for cell in cells])
    names = list(dict.fromkeys(name for cell in cells for name in cell["medians"]))
    figure, axes = pyplot.subplots(1, 3, figsize=(8, 3.2), layout="constrained")
    for axis, (title, value) in zip(axes, panels, strict=True):
        for number, name in enumerate(names):
            there = [place for place, cell in enumerate(cells) if name in cell["medians"]]
            axis.plot(
                there,
                [value(cells[place]["medians"][name]) for place in there],
                marker=_MARKS[number % len(_MARKS)],
                color=_COLOURS[number % len(_COLOURS)],
                markersize=4,
                linewidth=1.2,
                label=name,
            )
        axis.set_title(title)
        axis.set_xticks(range(len(cells)), labels, fontsize=7)
        axis.set_ylim(bottom=0)
        axis.margins(x=0.12)
        axis.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=7)
    return figure, common


def _labels(names: list[str]) -> tuple[str, list[str]]:
    """What all names have in common, with an ellipsis in place of what differs; and what each has of its own."""
    words = [name.split() for name in names]
    if len({len(each) for each in words}) > 1:
        return "", ["\n".join(textwrap.wrap(name, _WIDTH)) for name in names]
    differ = [len(set(column)) > 1 for column in zip(*words, strict=True)]
    common = " ".join("..." if other else word for word, other in zip(words[0], differ, strict=True))
    own = [[word for word, other in zip(each, differ, strict=True) if other] for each in words]
    return common, ["\n".join(word.strip(",") for word in each) for each in own]
