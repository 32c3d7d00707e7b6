"""``feather bench overhead``: what ordering the waiting queue costs, upstream's policies and ours in one process."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from feather_sglang._cht import build_info
from feather_sglang.bench.machine import here, in_words
from feather_sglang.bench.outputs import Outputs, add_options
from feather_sglang.bench.overhead_measure import Cell, alone, compare, hash_over_read_bandwidth
from feather_sglang.bench.overhead_picture import draw
from feather_sglang.bench.overhead_report import report
from feather_sglang.bench.overhead_table import render
from feather_sglang.cli.errors import UsageError

LENGTHS = (1_000, 4_000, 10_000, 32_000)
QUEUES = (128, 1_000, 4_000)
LONG_QUEUE = (1_000, 100_000)
QUICK = ((10_000, 1_000), (32_000, 4_000))
WORKLOAD = "8 families, prefixes of 50-90% of a prompt, all cached; batches of 100; CPU time of one thread"


def main(argv: list[str]) -> int:
    """Measure, print a table, write what was asked for.

    :raises UsageError: before anything is measured.
    """
    options = _parser().parse_args(argv)
    if build_info()["profile"] != "release":
        raise UsageError("the extension is a debug build; build it for release: `maturin develop --release`")
    outputs = Outputs.of(options)
    circumstances = here(["bench", "overhead", *argv], WORKLOAD, index=" ".join(build_info().values()))
    where = in_words(circumstances)
    from feather_sglang.bench.overhead_upstream import configure  # imports SGLang: after bad input was refused

    configure()
    print(f"{WORKLOAD}\n{where}\n", flush=True)
    began = time.perf_counter()
    result = report(list(_cells(options.quick)), hash_over_read_bandwidth(), circumstances)
    print(render(result))
    if not options.quick:
        result["adapter_pass_us"] = _adapter_pass()
    outputs.write(result, draw, subtitle=f"{WORKLOAD}\n{where}")
    print(f"{time.perf_counter() - began:.0f} s{outputs.said()}")
    return 0


def _cells(quick: bool) -> Iterator[Cell]:
    if quick:
        for tokens, waiting in QUICK:
            yield _said(compare(tokens, waiting, ["rust"], ["lpm", "lpm as shipped"]))
        return
    for tokens in LENGTHS:
        for waiting in QUEUES:
            yield _said(compare(tokens, waiting, ["rust", "python"]))
    yield _said(alone(*LONG_QUEUE))


def _adapter_pass() -> dict[str, Any]:
    """What the plugin adds to a pass of a real Scheduler, in a process of its own: a process has one configuration."""
    module = "feather_sglang.bench.overhead_pass"
    done = subprocess.run([sys.executable, "-W", "ignore", "-m", module], stdout=subprocess.PIPE, check=True)
    passes: dict[str, Any] = json.loads(done.stdout)
    print("\nadded to a pass of SGLang's scheduler, microseconds")
    print("(k: requests admitted; index: its calls in that; whole: SGLang's admission, our part in it;")
    print("sort: rows by family, once some joined)")
    for key, us in passes.items():
        print(f"  {key}: median {us['median']:.0f}, p99 {us['p99']:.0f} ({us['passes']} passes)")
    return passes


def _said(cell: Cell) -> Cell:
    print(f"{cell.key}: canary {cell.canary:.0f} us", flush=True)
    return cell


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather bench overhead",
        allow_abbrev=False,
        description="Compare what SGLang's policies and the index take to order one waiting queue, in one process, "
        "interleaved.",
    )
    parser.add_argument("--quick", action="store_true", help="two cells, the Rust tree, LPM: about a minute")
    add_options(parser)
    return parser
