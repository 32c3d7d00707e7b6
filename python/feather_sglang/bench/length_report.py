"""What ``feather bench length`` says: the JSON that programs read, and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from feather_sglang.bench.columns import in_columns
from feather_sglang.bench.length_runs import BATCH, MODES, PREDICTORS, THEORY, UNIFORM
from feather_sglang.bench.results import Circumstances

SCHEMA = {"name": "feather bench length", "version": 1}


def report(
    modelled: Sequence[Mapping[str, Any]],
    parking: Mapping[str, Any],
    aligned: Mapping[str, Any],
    skew: Mapping[str, Any],
    circumstances: Circumstances,
) -> dict[str, Any]:
    """The JSON object. ``bins[MODE][K][PREDICTOR]``: ratios to continuous batching, first come, first served, on
    Mooncake's output lengths; those on U[l, u], theory, aligned decode and the skewed batches in full are in ``rows``.
    """
    rows = [dict(row) for row in modelled if row["workload"] != "theory"]
    theory = [dict(row) for row in modelled if row["workload"] == "theory"]
    baselines = {row["workload"]: row for row in rows if row["mode"] == "fcfs"}
    for row in rows:
        row |= _ratios(row, baselines[row["workload"]])
    bins: dict[str, dict[str, dict[str, Any]]] = {mode: {} for mode in MODES}
    for row in rows:
        if row["workload"] == "mooncake" and row["mode"] in MODES:
            predictors = [row["predictor"]] if row["lanes"] > 1 else PREDICTORS
            figures = {name: row[name] for name in _RATIOS}
            bins[row["mode"]].setdefault(str(row["lanes"]), {}).update(dict.fromkeys(predictors, figures))
    return {
        "schema": SCHEMA,
        **asdict(circumstances),
        "rows": [*rows, *theory, dict(aligned), {"workload": "skew", **skew}],
        "parking": dict(parking),
        "skew_ratio": skew["skew_ratio"],
        "bins": bins,
        "theory_max_error": max(abs(row["error"]) for row in theory),
    }


_RATIOS = ("throughput_ratio", "mean_latency_ratio", "p99_latency_ratio")


def _ratios(row: Mapping[str, Any], fcfs: Mapping[str, Any]) -> dict[str, float]:
    return {
        "throughput_ratio": row["throughput_tok_s"] / fcfs["throughput_tok_s"],
        "mean_latency_ratio": row["latency_s"]["mean"] / fcfs["latency_s"]["mean"],
        "p99_latency_ratio": row["latency_s"]["p99"] / fcfs["latency_s"]["p99"],
    }


def render(result: Mapping[str, Any]) -> str:
    """The tables."""
    rows = result["rows"]
    parts = []
    for workload, what in _WORKLOADS.items():
        there = [row for row in rows if row["workload"] == workload]
        fcfs = next(row for row in there if row["mode"] == "fcfs")
        lines = [
            ["", "bins", "predicted by", "missed by", "throughput", "mean latency", "p99 latency"],
            ["continuous, FCFS", "", "", "", f"{fcfs['throughput_tok_s']:,.0f} tok/s", *_latency(fcfs)],
        ]
        for row in there[1:]:
            error = f"{row['length_error']:.0%}" if row["length_error"] is not None else ""
            named = _NAMES[row["mode"]] if row["lanes"] > 1 else f"{_NAMES[row['mode']]}, one bin"
            several = [str(row["lanes"]), row["predictor"]] if row["lanes"] > 1 else ["1", ""]
            lines.append([named, *several, error, *(f"{row[name]:.2f}" for name in _RATIOS)])
        parts.append("\n".join([f"{what} (modelled; ratios to FCFS)", *in_columns(lines)]))
    theory = [["bins", "theory", "core", "error"]] + [
        [str(row["bins"]), f"{row['theory']:.4f}", f"{row['simulated']:.4f}", f"{row['error']:+.3%}"]
        for row in rows
        if row["workload"] == "theory"
    ]
    what = f"Static batches of U[{THEORY[0]}, {THEORY[1]}], {BATCH} each, requests a step (modelled)"
    parts.append("\n".join([what, *in_columns(theory)]))
    parking = result["parking"]
    parts.append(
        "Parking against retraction, 40 requests in a pool for some 15 (measured)\n"
        f"  retractions {parking['retractions_off']} -> {parking['retractions_on']}, tokens computed again "
        f"{parking['recomputed_off']:,} -> {parking['recomputed_on']:,}, parked {parking['parks']} times, answers "
        f"{'identical' if parking['identical'] else 'DIFFER'}"
    )
    aligned = next(row for row in rows if row["workload"] == "aligned decode")
    skew = next(row for row in rows if row["workload"] == "skew")
    parts.append(
        "Aligned decode, one row in six long (measured)\n"
        f"  {skew['verdict']}\n"
        f"  it decided {aligned['aligned_steps']} steps and stood back in {aligned['declined']}; tokens per CPU-second "
        f"{aligned['throughput_ratio']:.2f} of all rows' ({aligned['throughput_ratio_spread'][0]:.2f}-"
        f"{aligned['throughput_ratio_spread'][1]:.2f})"
    )
    return "\n\n".join(parts)


_WORKLOADS = {"mooncake": "Mooncake's output lengths", "uniform": f"outputs of U[{UNIFORM[0]}, {UNIFORM[1]}]"}
_NAMES = {"static": "static batches", "lanes": "lanes, continuous"}


def _latency(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['latency_s']['mean']:.1f} s", f"{row['latency_s']['p99']:.1f} s"]
