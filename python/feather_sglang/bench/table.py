"""The table: one column an arm, the baseline first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def render(report: Mapping[str, Any]) -> str:
    """Of the JSON object that ``results.report`` makes."""
    columns = [["", *(label for label, _ in _LINES)]]
    for row in report["rows"]:
        columns.append([row["arm"], *(value(row) for _, value in _LINES)])
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for label, *cells in zip(*columns, strict=True):
        cells = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([label.ljust(widths[0]), *cells]).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def reused(row: Mapping[str, Any]) -> float:
    """Of the cacheable tokens, the share that was taken from the cache; 1 if nothing was cacheable."""
    return float(row["cached_tokens"] / row["cacheable_tokens"]) if row["cacheable_tokens"] else 1.0


def _decisions(row: Mapping[str, Any]) -> str:
    decisions = row["decisions"]
    if decisions is None:
        return "-"
    return f"{decisions['admitted']} / {decisions['stops']} / {decisions['barrier_waits']}"


_LINES: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
    ("requests", lambda row: f"{row['requests']}"),
    ("prefill tokens: cacheable", lambda row: f"{row['cacheable_tokens']:,}"),
    ("prefill tokens: from the cache", lambda row: f"{row['cached_tokens']:,} ({reused(row):.1%})"),
    ("prefill tokens: computed", lambda row: f"{row['prefill_tokens']:,}"),
    ("forward steps: prefill + decode", lambda row: f"{row['prefill_steps']} + {row['decode_steps']}"),
    ("throughput, output tokens/s", lambda row: f"{row['throughput_tok_s']:.1f}"),
    ("output tokens per CPU-second", lambda row: f"{row['tok_per_cpu_s']:.1f}"),
    ("TTFT mean / p99, s", lambda row: f"{row['ttft_s']['mean']:.1f} / {row['ttft_s']['p99']:.1f}"),
    ("TPOT mean / p99, s", lambda row: f"{row['tpot_s']['mean']:.2f} / {row['tpot_s']['p99']:.2f}"),
    ("admissions / stops / barrier waits", _decisions),
]
