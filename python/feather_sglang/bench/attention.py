"""``feather bench attention``: a decode step with shared prefixes read once, and read by every row."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from feather_sglang.bench.attention_picture import draw
from feather_sglang.bench.machine import here, in_words
from feather_sglang.bench.outputs import Outputs, add_options
from feather_sglang.bench.results import Circumstances, write
from feather_sglang.cli import model
from feather_sglang.cli.errors import UsageError

SCHEMA = {"name": "feather bench attention", "version": 1}
LIVE_SCHEMA = {"name": "feather bench attention --live", "version": 1}

PAIRS = 15
LONG_BATCH = 100
"""Rows of the cell on which the price of planning is judged."""


def main(argv: list[str]) -> int:
    """Measure, print a table, write what was asked for; 0.

    :raises UsageError: before anything is measured.
    """
    options = _parser().parse_args(argv)
    outputs = Outputs.of(options)
    if options.live and outputs.pictures:
        raise UsageError("--live draws no picture; leave out --svg and --png, or give --json")
    path = options.model_path or str(model.embedded_model(say=print))
    circumstances = here(
        ["bench", "attention", *argv], f"decode steps of {options.model_path or model.NAME}, float32, random KV"
    )
    print(f"{circumstances.workload}\n{in_words(circumstances)}\n", flush=True)
    began = time.perf_counter()
    if options.live:
        return _live(options, circumstances, outputs.json)
    rows = measure(path, quick=options.quick)
    report = report_of(rows, circumstances)
    print(f"\n{summary(report)}")
    outputs.write(report, draw, subtitle=f"{circumstances.workload}\n{in_words(circumstances)}")
    print(f"{time.perf_counter() - began:.0f} s{outputs.said()}")
    return 0


def _live(options: argparse.Namespace, circumstances: Circumstances, json: Path | None) -> int:
    from feather_sglang.bench import attention_live

    rows = attention_live.measure(
        ["--model-path", options.model_path] if options.model_path else [], repeats=options.repeats
    )
    ratios = attention_live.ratios(rows)
    for name, ratio in ratios.items():
        print(f"{name.replace('_', ' ')}: {ratio:.2f}x")
    if json is not None:
        write({"schema": LIVE_SCHEMA, **asdict(circumstances), "rows": rows, "live": ratios}, json)
    return 0


def cells(quick: bool) -> list[tuple[int, int, int, str]]:
    """(batch, prefix, families, order), as ``attention_step.Cell`` has them."""
    if quick:
        shared = [(batch, prefix, 1, "sorted") for batch in (8, 32) for prefix in (2048, 4096, 7168)]
        mixed = [(32, prefix, 8, "interleaved") for prefix in (2048, 4096)]
        return [(1, 4096, 1, "sorted"), *shared, *mixed, (32, 2048, 8, "sorted"), (8, 2048, 8, "sorted")]
    chosen = []
    for batch in (1, 2, 4, 8, 16, 32):
        for prefix in (1024, 2048, 4096, 7168):
            chosen.append((batch, prefix, 1, "sorted"))
            for families in (4, 8):
                if batch > families:
                    chosen += [(batch, prefix, families, order) for order in ("interleaved", "sorted")]
            if batch in (4, 8):
                chosen.append((batch, prefix, batch, "sorted"))
    return chosen


def measure(model_path: str, *, quick: bool) -> list[dict[str, Any]]:
    """One row a cell, printed as it is there: median CPU seconds of a step, and the ratio off / on of its pairs."""
    from feather_sglang.bench.attention_step import Cell, Steps

    chosen = [Cell(*fields) for fields in cells(quick)] + [Cell(LONG_BATCH, 1024, 8, "interleaved")]
    steps = Steps(model_path, LONG_BATCH, max(cell.slots for cell in chosen))
    print(_HEAD)
    rows = []
    for cell in chosen:
        times = steps.measure(cell, PAIRS if cell.batch <= 32 else 3, baseline=1 if quick or cell.batch > 32 else 3)
        ratios = np.array(times.off) / np.array(times.on)
        on = float(np.median(times.on))
        row = {
            **cell._asdict(),
            "off_s": float(np.median(times.off)),
            "on_s": on,
            "torch_native_s": float(np.median(times.baseline)),
            "pairs": len(ratios),
            "ratio": float(np.median(ratios)),
            "ratio_spread": [float(each) for each in np.percentile(ratios, [25, 75])],
            "planning_share": float(np.median(times.planning)) / on,
            "planning_share_of_new_rows": times.first_planning / on,
        }
        rows.append(row)
        print(_line(row), flush=True)
    return rows


def report_of(rows: Sequence[Mapping[str, Any]], circumstances: Circumstances) -> dict[str, Any]:
    """The JSON object; a key is None where no cell was measured for it."""
    one_family = [r["ratio"] for r in rows if r["families"] == 1 and 8 <= r["batch"] <= 32 and r["prefix"] >= 2048]
    eight = [r["ratio"] for r in rows if r["families"] == 8 and r["batch"] == 32]
    alone = [r["ratio"] for r in rows if r["families"] == r["batch"]]
    on = {(r["batch"], r["prefix"], r["families"]): r["on_s"] for r in rows}
    het = [
        seconds / on[batch, prefix, 1]
        for (batch, prefix, families), seconds in on.items()
        if families == 8 and batch > 8 and (batch, prefix, 1) in on
    ]
    return {
        "schema": SCHEMA,
        **asdict(circumstances),
        "rows": list(rows),
        "sharing_gain": _mean(one_family),
        "sharing_gain_8_families": _mean(eight),
        "no_sharing_ratio": _mean(alone),
        "het_over_hom": _mean(het),
        "over_torch_native": _mean([r["torch_native_s"] / r["on_s"] for r in rows]),
        "planning_share": max(r["planning_share"] for r in rows),
        "planning_share_of_new_rows": max(r["planning_share_of_new_rows"] for r in rows if r["batch"] >= 8),
    }


def summary(report: Mapping[str, Any]) -> str:
    """What the cells come to, in words."""

    def ratio(name: str) -> str:
        return "not measured" if report[name] is None else f"{report[name]:.2f}"

    return "\n".join(
        [
            "geometric means of medians:",
            f"  sharing, one family, 8 or more rows, prefix of 2,048 or more   {ratio('sharing_gain')}x",
            f"  sharing, eight families, 32 rows                              {ratio('sharing_gain_8_families')}x",
            f"  nothing to share, sharing off / on                            {ratio('no_sharing_ratio')}",
            f"  eight families / one, sharing on                              {ratio('het_over_hom')}",
            f"  torch_native / this backend, all cells                        {ratio('over_torch_native')}x",
            f"planning: at most {report['planning_share']:.2%} of a step, "
            f"{report['planning_share_of_new_rows']:.2%} of one with new rows",
        ]
    )


_HEAD = (
    f"{'rows':>5} {'prefix':>7} {'families':>9}  {'order':<12} {'native ms':>10} {'off ms':>9} {'on ms':>9}  off / on"
)


def _line(row: Mapping[str, Any]) -> str:
    low, high = row["ratio_spread"]
    times = f"{row['torch_native_s'] * 1e3:>10.0f} {row['off_s'] * 1e3:>9.1f} {row['on_s'] * 1e3:>9.1f}"
    where = f"{row['batch']:>5} {row['prefix']:>7,} {row['families']:>9}  {row['order']:<12}"
    return f"{where} {times}  {row['ratio']:.2f} ({low:.2f}-{high:.2f})"


def _mean(ratios: Sequence[float]) -> float | None:
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather bench attention",
        allow_abbrev=False,
        description="Time decode steps of a real model on the CPU with --attention-backend feather-cascade, sharing on "
        "and off in turns, and with SGLang's torch_native.",
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the cells: under five minutes")
    parser.add_argument("--live", action="store_true", help="real servers instead, on warm prefixes")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="with --live: runs of an arm (default: 3)")
    parser.add_argument("--model-path", metavar="MODEL", help="a folder (default: the embedded SmolLM2-135M-Instruct)")
    add_options(parser)
    return parser
