"""What is measured on this machine: scheduling overhead, and decode steps of the embedded model on the CPU."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from feather_sglang.bench.paper.arms import GPUS, LEVEL_TOKENS, SORTED, cost
from feather_sglang.bench.paper.batches import OUT_DECODES, SIZE, batch_of
from feather_sglang.bench.paper.experiment import Experiment, Row, Work
from feather_sglang.bench.paper.verdict import Part, Verdict, verdict

CELLS, QUICK_CELLS = ((4_000, 1_000), (10_000, 1_000), (10_000, 4_000), (32_000, 4_000)), ((2_000, 300),)
RIVALS = 0.5
"""Of a decode step."""
SMALL, LARGE, FAMILIES = 8, 64, 8
CPU_PREFIXES, QUICK_CPU_PREFIXES = (1024, 2048, 4096), (512,)
PAIRS, QUICK_PAIRS = 7, 3
NOTICED = 1.10
CPU = "measured on this machine, in CPU time of one thread"


def _cells(quick: bool) -> Iterator[Work]:
    yield from QUICK_CELLS if quick else CELLS


def overhead(work: Work) -> Row:
    """Microseconds to order a queue (measured), over a decode step of 100 such requests (modelled)."""
    from feather_sglang.bench.overhead_measure import compare
    from feather_sglang.bench.overhead_upstream import configure

    tokens, waiting = work
    configure()
    cell = compare(tokens, waiting, ["rust"], ["lpm", "lpm as shipped"])
    row: dict[str, Any] = {"tokens": tokens, "waiting": waiting}
    row["lpm us"] = cell.median("lpm (rust tree)")
    row["lpm as shipped us"] = cell.median("lpm as shipped (rust tree)")
    row["index us"] = cell.median("form")
    batch = batch_of((SIZE,), tokens // LEVEL_TOKENS * LEVEL_TOKENS)
    for gpu in GPUS:
        step = cost(gpu, SORTED).decode(batch) * 1e6
        row[f"step us, {gpu}"] = step
        for name in ("lpm", "lpm as shipped", "index"):
            row[f"{name} / step, {gpu}"] = row[f"{name} us"] / step
    return row


def overhead_verdict(rows: Sequence[Row]) -> Verdict:
    """Asked of LPM with its cap of 128 requests lifted, which is what orders by prefix; beside it what SGLang ships."""

    def part(name: str, what: str) -> Part:
        ratios = [row[f"{name} / step, {gpu}"] for row in rows for gpu in GPUS]
        return Part(f"{what}, over a decode step", ratios, RIVALS)

    return verdict(
        [part("lpm", "a pass of LPM, its cap lifted")],
        [part("lpm as shipped", "a pass of LPM as shipped"), part("index", "the index, a batch of 100")],
    )


@cache
def _steps(quick: bool) -> Any:
    from feather_sglang.bench.attention_step import Cell, Steps
    from feather_sglang.cli import model

    longest = max(QUICK_CPU_PREFIXES if quick else CPU_PREFIXES)
    return Steps(str(model.embedded_model()), LARGE, Cell(LARGE, longest, FAMILIES + 1, "sorted").slots)


@cache
def cpu_steps(work: Work) -> Row:
    """Tokens a CPU-second of decode steps: one family, eight of them, and a foreign row.

    On a plain attention (every row reads its own KV) and on one that shares. Once for both experiments.
    """
    from feather_sglang.bench.attention_step import Cell

    prefix, quick = work
    cells = {
        "one family": Cell(SMALL, prefix, 1, "sorted"),
        "foreign": Cell(SMALL, prefix, 1, "sorted", foreign=1),
        "mixed": Cell(LARGE, prefix, FAMILIES, "interleaved"),
        "mixed sorted": Cell(LARGE, prefix, FAMILIES, "sorted"),
    }
    speed = {}
    for name, cell in cells.items():
        times = _steps(quick).measure(cell, QUICK_PAIRS if quick else PAIRS, baseline=0)
        for kernel, seconds in (("plain", times.off), ("sharing", times.on)):
            speed[f"{name}, {kernel}"] = cell.batch / statistics.median(seconds)
    row: dict[str, Any] = {"prefix": prefix, **speed}
    for against in ("mixed, plain", "mixed sorted, plain", "mixed, sharing"):
        row[f"ratio, {against}"] = speed["one family, plain"] / speed[against]
    for kernel in ("plain", "sharing"):
        row[f"foreign ratio, {kernel}"] = speed[f"one family, {kernel}"] / speed[f"foreign, {kernel}"]
    return row


def _cpu_prefixes(quick: bool) -> Iterator[Work]:
    for prefix in QUICK_CPU_PREFIXES if quick else CPU_PREFIXES:
        yield prefix, quick


def cpu_verdict(rows: Sequence[Row]) -> Verdict:
    """Asked against a mixed batch as admitted, on the same plain attention."""
    asked, *others = (
        Part(
            f"{SMALL} rows of one family over {LARGE} {against}",
            [row[f"ratio, {against}"] for row in rows],
            OUT_DECODES,
        )
        for against in ("mixed, plain", "mixed sorted, plain", "mixed, sharing")
    )
    return verdict([asked], others)


def cpu_foreign_verdict(rows: Sequence[Row]) -> Verdict:
    plain, sharing = (
        Part(f"time with over without, {kernel}", [row[f"foreign ratio, {kernel}"] for row in rows], NOTICED)
        for kernel in ("plain", "sharing")
    )
    return verdict([plain], [sharing])


EXPERIMENTS = (
    Experiment(
        name="overhead",
        claim="Detecting prefixes by walks of a radix tree takes CPU time that rivals GPU time",
        source="abstract",
        method=f"a pass over a queue of 8 families in SGLang's Rust tree, over a decode step of {SIZE} such requests; "
        f"rivals: {RIVALS:g} of it or more",
        kind="measured here: the pass (CPU time of one thread); modelled: the decode step, with assumed constants",
        work=_cells,
        measure=overhead,
        verdict=overhead_verdict,
        alone=True,
    ),
    Experiment(
        name="homogeneous-cpu",
        claim="A smaller batch whose requests share one prefix can out-decode a larger mixed batch",
        source="abstract",
        method=f"decode steps of SmolLM2-135M: {SMALL} rows of one family, {LARGE} of {FAMILIES}; tokens a second",
        kind=CPU,
        work=_cpu_prefixes,
        measure=cpu_steps,
        verdict=cpu_verdict,
        alone=True,
    ),
    Experiment(
        name="foreign-cpu",
        claim="Does one foreign request in a homogeneous batch cost a tenth of its step time or more?",
        source="question",
        method=f"decode steps of SmolLM2-135M: {SMALL - 1} rows of one family and one of another, against {SMALL}",
        kind=CPU,
        work=_cpu_prefixes,
        measure=cpu_steps,
        verdict=cpu_foreign_verdict,
        alone=True,
    ),
)
