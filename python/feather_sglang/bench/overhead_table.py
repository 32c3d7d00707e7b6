"""The table of ``feather bench overhead``: times first, then what follows from them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

NOT_SHOWN = (
    "What the ratios do not show: above 128 waiting requests LPM as SGLang ships it, like its default, is first come, "
    "first served, at {median:.1f} us a pass here ({mean:.0f} on average: every 32nd pass refreshes the prefixes of "
    "the first 128). Against that the index saves nothing: it buys prefix order at any queue length for {form:.0f} us "
    "a pass, {cold:.0f} where other work has emptied the processor's caches. And the ratio of whole steps counts "
    "ordering and the matches of admission, nothing that a model computes."
)
ONE_PROMPT = (
    "What is quicker than the index on one prompt, and why: matching stops where the tree holds no more of it, and "
    "inserting one that the tree holds compares tokens; neither hashes, and a policy that orders by prefix matches "
    "every waiting prompt again in every pass, where the index hashes it once, when it arrives. xxh3 makes one hash, "
    "the index one for each chunk, linked to all before it."
)
_LABELS = {
    "form": "index: form a batch of 100",
    "form cold": "index: the same, caches cold",
    "undo": "index: undo it",
    "best": "index: best",
    "insert": "index: insert",
    "matches": "matches of the batch (rust tree)",
    "tree match": "match one prompt (rust tree)",
    "tree insert": "insert one prompt (rust tree)",
    "xxh3": "xxh3 of one prompt",
}
_SHIPPED = "lpm as shipped (rust tree)"


def render(report: Mapping[str, Any]) -> str:
    """Of the JSON object that ``overhead_report`` makes."""
    parts = [_times(report["rows"]), _ratios(report), _index(report), textwrap.fill(ONE_PROMPT, 110)]
    first_come = [row for row in report["rows"] if row["waiting"] > 128 and _SHIPPED in row["us"]]
    if first_come:
        row = first_come[0]
        text = NOT_SHOWN.format(
            median=row["us"][_SHIPPED][1],
            mean=row["mean_us"][_SHIPPED],
            form=row["us"]["form"][1],
            cold=row["us"]["form cold"][1],
        )
        parts.append(textwrap.fill(text, 110))
    return "\n\n".join(parts)


def _times(rows: Sequence[Mapping[str, Any]]) -> str:
    """Median and quartiles of all that was timed, one line each."""
    lines = [["T", "W", "microseconds of", "median", "quartiles", "n"]]
    for row in rows:
        for name, (low, middle, high) in row["us"].items():
            spread = f"{_digits(low)} - {_digits(high)}"
            lines.append(
                [
                    f"{row['tokens']:,}",
                    f"{row['waiting']:,}",
                    _LABELS.get(name, name),
                    _digits(middle),
                    spread,
                    f"{row['rounds'][name]}",
                ]
            )
    return _align(lines)


def _ratios(report: Mapping[str, Any]) -> str:
    lines = [
        ["", "LPM pass / batch of 100", "whole step", "its ceiling", "share of it", "LPM as shipped / batch of 100"]
    ]
    ratios = report["ratios"]
    for key, ratio in ratios["lpm_pass_over_form100"].items():
        step, ceiling = ratios["whole_step"][key], ratios["whole_step_ceiling"][key]
        shipped = ratios["shipped_pass_over_form100"][key]
        lines.append([key, f"{ratio:,.0f}", f"{step:.2f}", f"{ceiling:.2f}", f"{step / ceiling:.3f}", f"{shipped:.2f}"])
    return _align(lines)


def _index(report: Mapping[str, Any]) -> str:
    """Beside it what others do with the same prompt."""
    others = {"tree match": "SGLang's tree: match", "tree insert": "insert", "xxh3": "xxh3"}
    lines = [["one prompt, us", "index: insert", *others.values(), "index: bytes a request"]]
    for key, insert in report["insert_us"].items():
        times = report["one_prompt_us"].get(key, {})
        shown = [f"{times[name]:.1f}" if name in times else "-" for name in others]
        lines.append([key, f"{insert:.1f}", *shown, f"{report['memory_bytes_per_request'][key]:,.0f}"])
    hashed = f"inserting from memory / read bandwidth (NumPy's sum): {report['hash_over_read_bandwidth']:.2f}"
    return f"{_align(lines)}\n{hashed}"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def _align(lines: Sequence[Sequence[str]]) -> str:
    """Words to the left, numbers to the right, a rule below the heading."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    words = [not any(cell[:1].isdigit() for cell in column[1:]) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if word else cell.rjust(width)
            for cell, width, word in zip(line, widths, words, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([text[0], "-" * max(map(len, text)), *text[1:]])
