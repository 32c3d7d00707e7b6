"""``feather bench paper NAME``: runs experiments, prints their figures and verdicts."""

from __future__ import annotations

import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import date
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from feather_sglang.bench.machine import here, in_words
from feather_sglang.bench.outputs import Outputs, add_options
from feather_sglang.bench.paper import batches, measured, sweeps
from feather_sglang.bench.paper.experiment import Experiment, Row
from feather_sglang.bench.paper.report import render, summary
from feather_sglang.bench.results import write
from feather_sglang.cli.errors import UsageError

SCHEMA = {"name": "feather bench paper", "version": 1}
EXPERIMENTS = {each.name: each for each in (*batches.EXPERIMENTS, *sweeps.EXPERIMENTS, *measured.EXPERIMENTS)}
ALL, MODELLED, MEASURED = "all", "modelled", "measured"


def main(argv: list[str]) -> int:
    """Run what was named; whatever the verdicts, 0.

    :raises UsageError: before anything is run.
    """
    options = _parser().parse_args(argv)
    chosen = _chosen(options.names)
    outputs = Outputs.of(options)
    circumstances = here(["bench", "paper", *argv], "experiments of the Feather paper (arXiv 2605.06046)")
    print(f"{circumstances.workload}\n{in_words(circumstances)}", flush=True)
    began = time.perf_counter()
    report: dict[str, Any] = {
        "schema": SCHEMA,
        **asdict(circumstances),
        "date": date.today().isoformat(),
        "quick": options.quick,
        "rows": [],
        "experiments": {},
    }
    try:
        for experiment in chosen:
            rows = _run(experiment, options.quick, options.workers)
            found = summary(experiment, rows)
            report["experiments"][experiment.name] = found
            report["rows"] += [{"experiment": experiment.name, **row} for row in rows]
            print(f"\n{render(experiment.name, found, rows)}", flush=True)
    finally:
        if outputs.json is not None:  # an interrupt keeps what was finished
            write(report, outputs.json)
    if outputs.pictures:
        from feather_sglang.bench.paper.picture import draw

        draw(report, outputs.pictures, subtitle=in_words(circumstances))
    print(f"\n{time.perf_counter() - began:.0f} s{outputs.said()}")
    return 0


def _run(experiment: Experiment, quick: bool, workers: int) -> list[Row]:
    work = list(experiment.work(quick))
    with tqdm(total=len(work), desc=experiment.name, leave=False, disable=None) as bar:
        rows: list[Row] = []
        if experiment.alone or workers == 1:
            for each in work:
                rows.append(experiment.measure(each))
                bar.update()
            return rows
        with ProcessPoolExecutor(max_workers=workers) as pool:
            for row in pool.map(experiment.measure, work):
                rows.append(row)
                bar.update()
        return rows


def _chosen(names: list[str]) -> list[Experiment]:
    if names == [ALL]:
        return list(EXPERIMENTS.values())
    if names in ([MODELLED], [MEASURED]):
        return [each for each in EXPERIMENTS.values() if each.alone == (names == [MEASURED])]
    for name in names:
        if name not in EXPERIMENTS:
            expected = ", ".join([*EXPERIMENTS, MODELLED, MEASURED, ALL])
            raise UsageError(f"there is no experiment {name!r}; expected one of {expected}")
    return [EXPERIMENTS[name] for name in dict.fromkeys(names)]


def _parser() -> argparse.ArgumentParser:
    known = EXPERIMENTS.values()
    lines = "\n".join(f"  {each.name:<16} {each.claim} [{each.kind.split()[0].strip(':')}]" for each in known)
    parser = argparse.ArgumentParser(
        prog="feather bench paper",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="The experiments of the Feather paper: figures, modelled or measured, and a verdict on each claim.",
        epilog=f"experiments:\n{lines}\n  {MODELLED}, {MEASURED}, {ALL}: those of a kind, and all",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="an experiment, or several")
    parser.add_argument("--quick", action="store_true", help="few cells, in reduced form: a smoke test")
    cores = max(1, os.cpu_count() or 1)
    parser.add_argument("--workers", type=int, default=cores, help="processes for models; default: one a core")
    add_options(parser)
    return parser
