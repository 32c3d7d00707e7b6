"""``feather bench length``: parking, skewed batches and bins of output length, and what each brings where.

Bins are modelled (``length_runs``); parking, aligned decode and skewed batches run on this machine (``length_served``).
"""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from feather_sglang.bench import length_runs
from feather_sglang.bench.length_picture import draw
from feather_sglang.bench.length_report import render, report
from feather_sglang.bench.length_runs import LANES, PROFILE, ROWS, SCALE, SPEED, arms
from feather_sglang.bench.machine import here, in_words
from feather_sglang.bench.outputs import Outputs, add_options
from feather_sglang.simulate.profiles import PROFILES

REPEATS, QUICK_REPEATS = 5, 2
QUICK_UNIFORM = (1, 2, 8)


def main(argv: list[str]) -> int:
    """Run, print tables, write what was asked for.

    :raises UsageError: before anything is run.
    """
    options = _parser().parse_args(argv)
    outputs = Outputs.of(options)
    length_runs.jobs("mooncake")  # is it there
    began = time.perf_counter()
    circumstances = here(
        ["bench", "length", *argv],
        f"bins MODELLED on {PROFILES[PROFILE].said()}, of which {ROWS} rows are used: 2,000 requests of Mooncake's "
        f"conversations, arriving {SPEED:g} times as fast, prompts 1/{1 / SCALE:.0f} as long",
    )
    where = in_words(circumstances)
    print(f"{circumstances.workload}\nthe rest measured on {where}\n", flush=True)
    work = [*arms("mooncake", LANES), *arms("uniform", QUICK_UNIFORM if options.quick else LANES)]
    with ProcessPoolExecutor(max_workers=options.workers) as pool:
        theory = pool.map(length_runs.theory, LANES)
        served = list(pool.map(length_runs.serve, work))
        rows = [*served, *theory]
    figures = _measured(QUICK_REPEATS if options.quick else REPEATS)
    result = report(rows, *figures, circumstances)
    print(render(result))
    outputs.write(result, draw, subtitle=f"{circumstances.workload}\n{where}")
    print(f"\n{time.perf_counter() - began:.0f} s{outputs.said()}")
    return 0


def _measured(repeats: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Parking, aligned decode, and even against skewed batches."""
    from feather_sglang.bench import length_served, skew  # SGLang, which the processes above do not need

    return length_served.parking(), length_served.aligned(repeats), skew.report(skew.measure())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather bench length",
        allow_abbrev=False,
        description="What going by length brings: parking against retraction in a small KV pool, even against skewed "
        "batches, and bins of predicted output length, static and before continuous batching.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer bins and repetitions: at most 5 minutes on 2 cores")
    parser.add_argument(
        "--workers", type=int, default=max(1, os.cpu_count() or 1), help="processes; default: one a core"
    )
    add_options(parser)
    return parser
