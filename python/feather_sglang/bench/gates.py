"""``feather bench gates``: every gate in closed loop through the core and the index, on modelled step times."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product

from feather_sglang.bench import gates_sweep
from feather_sglang.bench.gates_picture import draw
from feather_sglang.bench.gates_report import WINDOW, render, report
from feather_sglang.bench.gates_runs import FAMILIES, MACHINE, ORDER, SURFACES, WAITING, Trajectory, gates, run
from feather_sglang.bench.machine import here, in_words
from feather_sglang.bench.outputs import Outputs, add_options
from feather_sglang.cli.errors import UsageError
from feather_sglang.core.settings import ORDERS

STEPS, QUICK_STEPS = 1500, 1200
SEEDS, QUICK_SEEDS = 20, 4
SWEEP_SEEDS, QUICK_SWEEP_SEEDS = 3, 1
_SURFACES = [surface.name for surface in SURFACES]
WORKLOAD = (
    f"MODELLED, nothing here ran on a GPU: {len(FAMILIES.prefixes)} families of {FAMILIES.prefixes[0]:,} tokens, "
    f"{WAITING} requests always waiting, {MACHINE.rows} rows, about {FAMILIES.output:.0f} tokens each"
)


def main(argv: list[str]) -> int:
    """Run, print a table, write what was asked for.

    :raises UsageError: before anything is run.
    """
    options = _parser().parse_args(argv)
    outputs = Outputs.of(options)
    if options.sweep is not None and outputs.pictures:
        raise UsageError("--sweep draws no picture; leave out --svg and --png, or give --json")
    steps, seeds = (QUICK_STEPS, QUICK_SEEDS) if options.quick else (STEPS, SEEDS)
    if options.sweep is not None:
        seeds = QUICK_SWEEP_SEEDS if options.quick else SWEEP_SEEDS
    steps = steps if options.steps is None else options.steps
    seeds = seeds if options.seeds is None else options.seeds
    if steps < 2 * WINDOW or seeds < 1:
        raise UsageError(
            f"{steps} steps of {seeds} seeds; expected at least {2 * WINDOW} steps, which are judged, of one"
        )
    began = time.perf_counter()
    circumstances = here(["bench", "gates", *argv], f"{WORKLOAD}, order {options.order}; {seeds} seeds")
    where = in_words(circumstances)
    print(f"{circumstances.workload}\n{where}\n", flush=True)
    if options.sweep is not None:
        with ProcessPoolExecutor(max_workers=options.workers) as pool:
            result = gates_sweep.sweep(options.sweep, seeds, steps, options.order, pool, circumstances)
        print(f"{options.sweep}: tokens per second at the end ÷ those of never, over {len(SURFACES)} surfaces\n")
        print(gates_sweep.render(result))
        outputs.write(result, draw, subtitle="")
        print(f"\n{time.perf_counter() - began:.0f} s{outputs.said()}")
        return 0
    names = list(gates(options.quick))
    surfaces = [surface for surface in SURFACES if surface.name in (options.surface or _SURFACES)]
    runs: dict[str, dict[str, list[Trajectory]]] = {surface.name: {name: [] for name in names} for surface in surfaces}
    numbers = map(SURFACES.index, surfaces)
    work = list(product(numbers, names, range(seeds), [steps], [options.quick], [options.order]))
    with ProcessPoolExecutor(max_workers=options.workers) as pool:
        for (surface, name, *_), done in zip(work, pool.map(_one, work, chunksize=4), strict=True):
            runs[SURFACES[surface].name][name].append(done)
    result = report(runs, surfaces, circumstances)
    print("final ratio to the best fixed gate, and decode steps until within 5% of it for good (-: never)\n")
    print(render(result))
    outputs.write(result, draw, subtitle=f"{circumstances.workload}\n{where}")
    print(f"\n{time.perf_counter() - began:.0f} s{outputs.said()}")
    return 0


def _one(work: tuple[int, str, int, int, bool, str]) -> Trajectory:
    surface, name, seed, steps, quick, order = work
    return run(SURFACES[surface], gates(quick)[name](seed), seed, steps * (1 + SURFACES[surface].drifts), order)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather bench gates",
        allow_abbrev=False,
        description="Every gate in closed loop through the core and the index, on modelled step times. What a gate "
        "sees is noisy, what it is judged on is not.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer seeds, steps and fixed gates: under five minutes")
    parser.add_argument("--steps", type=int, metavar="N", help=f"decode steps of a run (default: {STEPS:,})")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"runs of each gate on a surface (default: {SEEDS})")
    parser.add_argument(
        "--surface", action="append", choices=_SURFACES, metavar="NAME", help=f"only this one: {', '.join(_SURFACES)}"
    )
    parser.add_argument("--order", choices=ORDERS, default=ORDER, help="of the waiting queue; default: %(default)s")
    parser.add_argument(
        "--workers", type=int, default=max(1, os.cpu_count() or 1), help="processes; default: one a core"
    )
    parser.add_argument(
        "--sweep",
        choices=sorted(gates_sweep.GRIDS),
        metavar="GATE",
        help="instead, try constants of a gate, each with each, on all surfaces: %(choices)s",
    )
    add_options(parser)
    return parser
