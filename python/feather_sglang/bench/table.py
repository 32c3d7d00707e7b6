"""The table: one column an arm, the baseline first, a few arms beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from feather_sglang.bench.columns import in_columns

BESIDE = 4
"""Arms in one block."""


def render(compared: Mapping[str, Any]) -> str:
    """Of the JSON object of a report, or of one of its workloads: medians, where there are several rounds."""
    rows = list(compared["medians"].values())
    blocks = [_block(rows[start : start + BESIDE], compared) for start in range(0, len(rows), BESIDE)]
    return "\n\n".join(blocks)


def _block(rows: list[Mapping[str, Any]], compared: Mapping[str, Any]) -> str:
    columns = [["", *(label for label, _ in _LINES), "tokens per CPU-second, of fcfs'"]]
    for row in rows:
        columns.append([row["arm"], *(_cell(value, row) for _, value in _LINES), _ratio(compared, row["arm"])])
    if all(column[-1] == "-" for column in columns[1:]):
        columns = [column[:-1] for column in columns]
    lines = in_columns(list(zip(*columns, strict=True)))
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def _cell(value: Callable[[Mapping[str, Any]], str], row: Mapping[str, Any]) -> str:
    try:
        return value(row)
    except TypeError:  # of None: the server did not tell
        return "-"


def _ratio(compared: Mapping[str, Any], arm: str) -> str:
    ratio = compared["ratio_to_fcfs"].get(arm)
    if ratio is None:
        return "-"
    least, most = compared["ratio_spread"][arm]
    return f"{ratio:.2f}" + (f" ({least:.2f}-{most:.2f})" if most > least else "")


def reused(row: Mapping[str, Any]) -> float:
    """Of the cacheable tokens, the share that was taken from the cache; 1 if nothing was cacheable."""
    return float(row["cached_tokens"] / row["cacheable_tokens"]) if row["cacheable_tokens"] else 1.0


def _decisions(row: Mapping[str, Any]) -> str:
    decisions = row["decisions"]
    return f"{decisions['admitted']:.0f} / {decisions['stops']:.0f} / {decisions['barrier_waits']:.0f}"


_LINES: list[tuple[str, Callable[[Mapping[str, Any]], str]]] = [
    ("requests", lambda row: f"{row['requests']}"),
    ("prefill tokens: cacheable", lambda row: f"{row['cacheable_tokens']:,}"),
    ("prefill tokens: from the cache", lambda row: f"{row['cached_tokens']:,.0f} ({reused(row):.1%})"),
    ("prefill tokens: computed", lambda row: f"{row['prefill_tokens']:,.0f}"),
    ("forward steps: prefill + decode", lambda row: f"{row['prefill_steps']:.0f} + {row['decode_steps']:.0f}"),
    ("requests in a decode step, mean", lambda row: f"{row['mean_batch']:.1f}"),
    ("distinct / total KV while decoding", lambda row: f"{row['distinct_over_total_kv']:.0%}"),
    ("throughput, output tokens/s", lambda row: f"{row['throughput_tok_s']:.1f}"),
    ("output tokens per CPU-second", lambda row: f"{row['tok_per_cpu_s']:.1f}"),
    ("TTFT mean / p50 / p99, s", lambda row: " / ".join(f"{row['ttft_s'][k]:.1f}" for k in ("mean", "p50", "p99"))),
    ("TPOT mean / p99, s", lambda row: " / ".join(f"{row['tpot_s'][key]:.2f}" for key in ("mean", "p99"))),
    ("time in the policy", lambda row: f"{row['policy_share']:.2%}"),
    ("admissions / stops / barrier waits", _decisions),
]
