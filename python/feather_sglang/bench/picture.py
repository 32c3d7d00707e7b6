"""The picture of a report: prefill tokens, forward steps and speed, one bar an arm."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from feather_sglang.bench.table import reused
from feather_sglang.cli.errors import UsageError

_DONE, _LOST, _MORE = "#1b7f79", "#d95f30", "#9aa5ad"  # told apart in grey and by colour-blind eyes, too


def require_matplotlib() -> None:
    """:raises UsageError: if no picture can be drawn."""
    if find_spec("matplotlib") is None:
        raise UsageError("a picture needs matplotlib: `pip install matplotlib`, or leave out --svg and --png")


def draw(report: Mapping[str, Any], paths: list[Path], *, subtitle: str, note: str | None = None) -> None:
    """Write the picture, 8 inches wide (1,200 pixels as PNG), to each of ``paths``; their suffixes name the formats."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = list(report["rows"])
    names = [row["arm"] for row in rows]
    with pyplot.rc_context({"font.size": 8, "axes.titlesize": 9, "svg.hashsalt": "feather", "axes.axisbelow": True}):
        figure, (tokens, steps, last) = pyplot.subplots(
            1, 3, figsize=(8, 1.75 + 0.36 * len(rows)), sharey=True, width_ratios=(1.5, 1, 1), layout="constrained"
        )
        _stack(
            tokens,
            names,
            {
                "from the cache": (_DONE, [row["cached_tokens"] / 1000 for row in rows]),
                "computed though cacheable": (
                    _LOST,
                    [max(row["cacheable_tokens"] - row["cached_tokens"], 0) / 1000 for row in rows],
                ),
                "new": (
                    _MORE,
                    [
                        (row["prompt_tokens"] - max(row["cacheable_tokens"], row["cached_tokens"])) / 1000
                        for row in rows
                    ],
                ),
            },
            [f"{reused(row):.1%} of cacheable" for row in rows],
        )
        tokens.set_title("Prompt tokens (thousands)")
        _stack(
            steps,
            names,
            {
                "prefill": (_DONE, [row["prefill_steps"] for row in rows]),
                "decode": (_MORE, [row["decode_steps"] for row in rows]),
            },
            [str(row["steps"]) for row in rows],
        )
        steps.set_title("Forward steps")
        if report["machine"]["accelerator"] is None:  # work is CPU time then, whatever else the machine does
            speeds = [row["tok_per_cpu_s"] for row in rows]
            _stack(last, names, {"output": (_DONE, speeds)}, [f"{speed:.1f}" for speed in speeds])
            last.set_title("Tokens per CPU-second")
        else:
            means, tops = ([row["ttft_s"][which] for row in rows] for which in ("mean", "p99"))
            rests = [top - mean for mean, top in zip(means, tops, strict=True)]
            ends = [f"{mean:.2f} / {top:.2f}" for mean, top in zip(means, tops, strict=True)]
            _stack(last, names, {"mean": (_DONE, means), "p99": (_MORE, rests)}, ends)
            last.set_title("Time to first token (s)")
        tokens.invert_yaxis()
        figure.suptitle("\n".join(textwrap.fill(line, 130) for line in subtitle.splitlines()), fontsize=8)
        if note:
            figure.supxlabel(textwrap.fill(note, 140), fontsize=7, color="#555555")
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else None  # the same numbers, the same file
            figure.savefig(path, dpi=150, metadata=metadata)
        pyplot.close(figure)


def _stack(
    axes: Any, names: Sequence[str], parts: Mapping[str, tuple[str, Sequence[float]]], ends: Sequence[str]
) -> None:
    """Horizontal bars of ``parts`` (label: colour and widths), with ``ends`` written behind them."""
    left = [0.0] * len(names)
    for label, (colour, widths) in parts.items():
        axes.barh(names, widths, left=left, color=colour, label=label, height=0.62)
        left = [start + width for start, width in zip(left, widths, strict=True)]
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
