"""The picture of a report: prompt tokens, forward steps and speed, one bar an arm."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from feather_sglang.bench.sweep_picture import sweep
from feather_sglang.bench.table import reused
from feather_sglang.cli.errors import UsageError

_DONE, _LOST, _MORE = "#1b7f79", "#d95f30", "#9aa5ad"  # told apart in grey and by colour-blind eyes, too


def require_matplotlib() -> None:
    """:raises UsageError: if no picture can be drawn."""
    if find_spec("matplotlib") is None:
        raise UsageError("a picture needs matplotlib: `pip install matplotlib`, or leave out --svg and --png")


@contextmanager
def canvas(size: float = 8) -> Iterator[Any]:
    """``matplotlib.pyplot``, without a display, with the looks of all pictures.

    :param size: of letters, in points.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    looks = {"font.size": size, "axes.titlesize": size + 0.5, "svg.hashsalt": "feather", "axes.axisbelow": True}
    with pyplot.rc_context(looks):
        yield pyplot


def save(figure: Any, paths: Sequence[Path], title: str = "") -> None:
    """Write a figure to each of ``paths``, and close it. The same numbers make the same file.

    :param title: lines over all of it, which are wrapped.
    """
    from matplotlib import pyplot

    if title:
        lines = [textwrap.fill(line, 130) for line in title.splitlines()]
        figure.suptitle("\n".join(lines), fontsize=pyplot.rcParams["font.size"])
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str, note: str | None = None) -> None:
    """Write the picture, 8 inches wide (1,200 pixels as PNG), to each of ``paths``; their suffixes name the formats.

    A sweep: lines over its workloads; else bars.
    """
    with canvas():
        lines = subtitle.splitlines()
        if "workloads" in report:
            figure, common = sweep(report)
            lines += [line for line in (common, note) if line]
        else:
            figure = _bars(report)
            if note:
                figure.supxlabel(textwrap.fill(note, 140), fontsize=7, color="#555555")
        save(figure, paths, "\n".join(lines))


def _bars(report: Mapping[str, Any]) -> Any:
    from matplotlib import pyplot

    rows = list(report["medians"].values())
    names = [row["arm"] for row in rows]
    counted = all(row["steps"] is not None for row in rows)
    figure, (tokens, steps, last) = pyplot.subplots(
        1, 3, figsize=(8, 1.75 + 0.36 * len(rows)), sharey=True, width_ratios=(1.5, 1, 1), layout="constrained"
    )
    parts = [_prompt_tokens(row) for row in rows]
    colours = {"from the cache": _DONE, "computed though cacheable": _LOST, "new": _MORE}
    _stack(
        tokens,
        names,
        {label: (colour, [part[label] for part in parts]) for label, colour in colours.items()},
        [f"{reused(row):.1%} of cacheable" for row in rows],
    )
    tokens.set_title("Prompt tokens (thousands)")
    if counted:
        _stack(
            steps,
            names,
            {
                "prefill": (_DONE, [row["prefill_steps"] for row in rows]),
                "decode": (_MORE, [row["decode_steps"] for row in rows]),
            },
            [f"{row['steps']:.0f}" for row in rows],
        )
        steps.set_title("Forward steps")
    else:
        speeds = [row["throughput_tok_s"] for row in rows]
        _stack(steps, names, {"output": (_DONE, speeds)}, [f"{speed:.1f}" for speed in speeds])
        steps.set_title("Tokens per second")
    per_cpu = [row["tok_per_cpu_s"] for row in rows]
    if report["machine"]["accelerator"] is None and None not in per_cpu:  # work is CPU time, whatever else happens
        least, most = zip(*(report["spread"][name]["tok_per_cpu_s"] for name in names), strict=True)
        _stack(last, names, {"output": (_DONE, per_cpu)}, [f"{speed:.1f}" for speed in per_cpu], reach=most)
        last.set_title("Tokens per CPU-second")
        if least != most:
            errors = np.abs(np.array([least, most]) - np.array(per_cpu))
            last.errorbar(per_cpu, names, xerr=errors, fmt="none", ecolor="#222222", elinewidth=1, capsize=2)
    else:
        means, tops = ([row["ttft_s"][which] for row in rows] for which in ("mean", "p99"))
        rests = [top - mean for mean, top in zip(means, tops, strict=True)]
        ends = [f"{mean:.2f} / {top:.2f}" for mean, top in zip(means, tops, strict=True)]
        _stack(last, names, {"mean": (_DONE, means), "p99": (_MORE, rests)}, ends)
        last.set_title("Time to first token (s)")
    tokens.invert_yaxis()
    return figure


def _prompt_tokens(row: Mapping[str, Any]) -> dict[str, float]:
    """In thousands."""
    cached, cacheable = row["cached_tokens"], row["cacheable_tokens"]
    parts = {
        "from the cache": cached,
        "computed though cacheable": max(cacheable - cached, 0),
        "new": row["prompt_tokens"] - max(cacheable, cached),
    }
    return {label: tokens / 1000 for label, tokens in parts.items()}


def _stack(
    axes: Any,
    names: Sequence[str],
    parts: Mapping[str, tuple[str, Sequence[float]]],
    ends: Sequence[str],
    reach: Sequence[float] = (),
) -> None:
    """Horizontal bars of ``parts`` (label: colour and widths), with ``ends`` written behind them.

    :param reach: where something else ends that is drawn over a bar, if it is longer.
    """
    left = [0.0] * len(names)
    for label, (colour, widths) in parts.items():
        axes.barh(names, widths, left=left, color=colour, label=label, height=0.62)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    left = list(map(max, left, reach)) if reach else left
    longest = max(left)
    for name, end, text in zip(names, left, ends, strict=True):
        axes.text(end + longest * 0.02, name, text, va="center", fontsize=7)
    axes.set_xticks([tick for tick in axes.get_xticks() if tick <= longest])
    axes.set_xlim(0, longest * (1.05 + 0.03 * max(map(len, ends))))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(0, -0.14),
        ncols=len(parts),
        frameon=False,
        fontsize=7,
        handlelength=0.9,
        columnspacing=0.9,
        handletextpad=0.4,
        borderaxespad=0.2,
    )
