"""The report of ``feather bench serve``: medians over the rounds, with what they spread over, and ratios in pairs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from feather_sglang.bench.arms import BASELINE, baseline_of
from feather_sglang.bench.results import SCHEMA, Circumstances, Run, together


def report(
    runs: Sequence[Run],
    circumstances: Circumstances,
    *,
    workloads: Sequence[str],
    stopped: str | None = None,
    complete: bool = True,
) -> dict[str, Any]:
    """The JSON object, the baseline first. Where there are several workloads, ``arms`` takes them together, and
    ``workloads`` has each.

    :param workloads: the names of all that were asked for.
    :param stopped: why it ended before it was complete.
    """
    runs = sorted(runs, key=lambda run: run.arm != BASELINE)
    rounds = [
        together([run for run in runs if (run.arm, run.round) == key])
        for key in dict.fromkeys((run.arm, run.round) for run in runs)
        if sum((run.arm, run.round) == key for run in runs) == len(workloads)
    ]
    by_workload = [_compared([run for run in runs if run.workload == name]) | {"name": name} for name in workloads]
    return {
        "schema": SCHEMA,
        **asdict(circumstances),
        "complete": complete,
        "stopped": stopped,
        "rows": [run.row() for run in runs],
        **_compared(rounds),
        **({"workloads": by_workload} if len(workloads) > 1 else {}),
    }


def _compared(runs: Sequence[Run]) -> dict[str, Any]:
    """``arms``, what they spread over, and how they compare."""
    by_arm: dict[str, dict[int, dict[str, Any]]] = {}
    for run in runs:
        by_arm.setdefault(run.arm, {})[run.round] = run.row()
    ratios: dict[str, list[float]] = {}
    throughput: dict[str, list[float]] = {}
    for name, rounds in by_arm.items():
        base = by_arm.get(baseline_of(name), {})
        for round, row in rounds.items():
            if round in base and row["tok_per_cpu_s"] and base[round]["tok_per_cpu_s"]:
                ratios.setdefault(name, []).append(row["tok_per_cpu_s"] / base[round]["tok_per_cpu_s"])
            if round in base:
                throughput.setdefault(name, []).append(row["throughput_tok_s"] / base[round]["throughput_tok_s"])
    return {
        "arms": {name: _summary(_median(list(rounds.values()))) for name, rounds in by_arm.items()},
        "medians": {name: _median(list(rounds.values())) for name, rounds in by_arm.items()},
        "spread": {name: _spread(list(rounds.values())) for name, rounds in by_arm.items()},
        "ratio_to_fcfs": {name: statistics.median(each) for name, each in ratios.items()},
        "ratio_spread": {name: [min(each), max(each)] for name, each in ratios.items()},
        "throughput_ratio_to_fcfs": {name: statistics.median(each) for name, each in throughput.items()},
    }


_NOT_A_FIGURE = ("arm", "workload", "round")
_ARM = (
    "throughput_tok_s",
    "tok_per_cpu_s",
    "ttft_s",
    "tpot_s",
    "steps",
    "prefill_tokens",
    "cached_tokens",
    "cacheable_tokens",
    "mean_batch",
    "distinct_over_total_kv",
    "policy_share",
)


def _summary(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _ARM}


def _median(values: Sequence[Any]) -> Any:
    """Of numbers; of objects, key by key. None if one of them is not known."""
    first = values[0]
    if isinstance(first, Mapping) and None not in values:
        return {key: first[key] if key in _NOT_A_FIGURE else _median([value[key] for value in values]) for key in first}
    return None if None in values else statistics.median(values)


def _spread(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Least and greatest of the rounds."""
    figures = {
        "throughput_tok_s": [row["throughput_tok_s"] for row in rows],
        "tok_per_cpu_s": [row["tok_per_cpu_s"] for row in rows],
        "ttft_mean_s": [row["ttft_s"]["mean"] for row in rows],
        "tpot_mean_s": [row["tpot_s"]["mean"] for row in rows],
    }
    return {name: None if None in values else [min(values), max(values)] for name, values in figures.items()}
