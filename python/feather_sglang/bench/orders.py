"""``feather bench orders``: who comes next, through the core and the index and by SGLang's rules, on modelled steps."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from typing import Any

from feather_sglang.bench.machine import here, in_words
from feather_sglang.bench.orders_picture import draw
from feather_sglang.bench.orders_report import render, report
from feather_sglang.bench.orders_runs import AGING, MAX_WAIT, QUICK_AGING, WORKLOADS, run
from feather_sglang.bench.outputs import Outputs, add_options
from feather_sglang.core.settings import GATES, Settings
from feather_sglang.simulate.profiles import DEFAULT, PROFILES

_NAMES = [workload.name for workload in WORKLOADS]
SEEDS, QUICK_SEEDS = 6, 1


def main(argv: list[str]) -> int:
    """Run, print a table a workload, write what was asked for.

    :raises UsageError: before anything is run.
    """
    options = _parser().parse_args(argv)
    outputs = Outputs.of(options)
    aging, seeds = (QUICK_AGING, QUICK_SEEDS) if options.quick else (AGING, SEEDS)
    workloads = [workload for workload in WORKLOADS if workload.name in (options.workload or _NAMES)]
    began = time.perf_counter()
    circumstances = here(
        ["bench", "orders", *argv],
        f"MODELLED, nothing here was served: {PROFILES[options.profile].said()}; "
        f"Feather's orders with the gate {options.gate} and a bound of {options.max_wait:g} s; "
        f"mean of {seeds} seed{'s' * (seeds > 1)}",
    )
    where = in_words(circumstances)
    print(f"{circumstances.workload}\n{where}", flush=True)
    numbers = [_NAMES.index(workload.name) for workload in workloads]
    work = list(product(numbers, [options.profile], range(seeds), [aging], [options.gate], [options.max_wait]))
    runs: dict[str, list[dict[str, Any]]] = {workload.name: [] for workload in workloads}
    with ProcessPoolExecutor(max_workers=options.workers) as pool:
        for (which, *_), done in zip(work, pool.map(_one, work), strict=True):
            runs[WORKLOADS[which].name].append(done)
    result = report(runs, workloads, circumstances)
    for name in runs:
        print(f"\n{render(result, name)}")
    outputs.write(result, draw, subtitle=f"{circumstances.workload}\n{where}")
    print(f"\n{time.perf_counter() - began:.0f} s{outputs.said()}")
    return 0


def _one(work: tuple[int, str, int, tuple[float, ...], str, float]) -> dict[str, dict[str, Any]]:
    which, profile, seed, aging, gate, max_wait = work
    return run(WORKLOADS[which], PROFILES[profile], seed, aging, gate, max_wait)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather bench orders",
        allow_abbrev=False,
        description="Feather's orders, with a sweep of the ageing, and SGLang's own policies by upstream's rules, on "
        "modelled step times: throughput, time to first token in seconds and in scheduled tokens, time per token.",
    )
    parser.add_argument("--quick", action="store_true", help="one seed and fewer ageing rates: under a minute")
    parser.add_argument("--profile", choices=PROFILES, default=DEFAULT, help="what is modelled (default: %(default)s)")
    parser.add_argument(
        "--gate", choices=GATES, default=Settings().gate, help="of Feather's orders (default: %(default)s)"
    )
    parser.add_argument(
        "--max-wait",
        type=float,
        default=MAX_WAIT,
        metavar="SECONDS",
        help="Feather's bound on waiting (default: %(default)g)",
    )
    parser.add_argument(
        "--workload", action="append", choices=_NAMES, metavar="NAME", help=f"only this one: {', '.join(_NAMES)}"
    )
    parser.add_argument(
        "--workers", type=int, default=max(1, os.cpu_count() or 1), help="processes; default: one a core"
    )
    add_options(parser)
    return parser
