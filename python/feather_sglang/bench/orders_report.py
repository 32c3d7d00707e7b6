"""What the runs of ``feather bench orders`` say: the JSON object and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from feather_sglang.bench.columns import in_columns
from feather_sglang.bench.orders_runs import Workload
from feather_sglang.bench.results import Circumstances, mean

SCHEMA = {"name": "feather bench orders", "version": 1}
BASELINE = "hrrn"

Runs = Sequence[Mapping[str, Mapping[str, Any]]]
"""A seed each: figures by arm."""


def report(runs: Mapping[str, Runs], workloads: Sequence[Workload], circumstances: Circumstances) -> dict[str, Any]:
    """The JSON object. ``runs``: by workload.

    ``orders[ARM][WORKLOAD]``: means over the seeds; ``p99_tokens_ratio_to_hrrn`` of the paired ratios of the p99 TTFT
    in scheduled tokens, and ``..._spread`` the least and the largest of them.
    """
    rows: list[dict[str, Any]] = []
    orders: dict[str, dict[str, Any]] = {}
    for workload in workloads:
        seeds = runs[workload.name]
        for arm in seeds[0]:
            figures = _means([seed[arm] for seed in seeds])
            ratios = [_p99(seed[arm]) / _p99(seed[BASELINE]) for seed in seeds]
            figures["p99_tokens_ratio_to_hrrn"] = mean(ratios)
            figures["p99_tokens_ratio_to_hrrn_spread"] = [min(ratios), max(ratios)]
            orders.setdefault(arm, {})[workload.name] = figures
            rows.append({"workload": workload.name, "what": workload.what, "arm": arm, **figures})
    return {"schema": SCHEMA, **asdict(circumstances), "rows": rows, "orders": orders}


def _p99(figures: Mapping[str, Any]) -> float:
    return float(figures["ttft_tokens"]["p99"])


def _means(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        name: _means([each[name] for each in figures])
        if isinstance(value, Mapping)
        else mean([each[name] for each in figures])
        for name, value in figures[0].items()
    }


def render(result: Mapping[str, Any], workload: str) -> str:
    """The table of one workload: a line an arm."""
    rows = [row for row in result["rows"] if row["workload"] == workload]
    head = "arm", "tok/s", "TTFT s mean", "p99", "TTFT tokens mean", "p99", "÷ HRRN", "TPOT ms mean", "p99", "waiting"
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        seconds, tokens, tpot = row["ttft_s"], row["ttft_tokens"], row["tpot_s"]
        lines.append(
            (
                row["arm"],
                f"{row['throughput_tok_s']:,.0f}",
                f"{seconds['mean']:.2f}",
                f"{seconds['p99']:.2f}",
                f"{tokens['mean']:,.0f}",
                f"{tokens['p99']:,.0f}",
                f"{row['p99_tokens_ratio_to_hrrn']:.2f}",
                f"{tpot['mean'] * 1e3:.1f}",
                f"{tpot['p99'] * 1e3:.1f}",
                f"{row['most_waiting']:.0f}",
            )
        )
    table = in_columns(lines)
    return "\n".join([f"{workload}: {rows[0]['what']}", table[0], "-" * len(table[0]), *table[1:]])
