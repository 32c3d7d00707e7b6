"""Batches of one family against mixed ones, and one foreign request among a hundred."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import product

from feather_sglang.bench.paper.arms import (
    ADMITTED,
    FEATHER,
    GPUS,
    LEVEL_TOKENS,
    SHARED,
    SORTED,
    Arm,
    cost,
    families,
    serve,
    warm_up,
)
from feather_sglang.bench.paper.experiment import MODELLED, Experiment, Row, Work
from feather_sglang.bench.paper.verdict import Part, Verdict, verdict
from feather_sglang.simulate.cost import Batch
from feather_sglang.simulate.pool import Pool
from feather_sglang.simulate.workload import Job

PREFIXES, QUICK_PREFIXES = (1024, 2048, 4096, 8192, 10240), (1024, 8192)
READS = (ADMITTED, SORTED, SHARED)
FAMILIES, SIZE, SUFFIX, OUTPUT = 8, 100, 256, 200
OUT_DECODES = 1.05
"""A ratio that is more than a tie."""
NOTICED = 1.10
"""Time of a step with a foreign request, over that without."""


def _prefixes(quick: bool) -> Iterator[Work]:
    yield from product(GPUS, QUICK_PREFIXES if quick else PREFIXES)


def eight_hundred(prefix: int, output: int = OUTPUT) -> list[Job]:
    """Requests of eight families in turn, at once."""
    paths = families(FAMILIES, prefix, output).paths(LEVEL_TOKENS)
    return [Job(i, 0.0, paths[i % FAMILIES], prefix + SUFFIX, output, i % FAMILIES) for i in range(FAMILIES * SIZE)]


def homogeneous(work: Work) -> Row:
    """Tokens a second of eight batches of 100, over those of one batch of 800 or of as many as fit."""
    gpu, prefix = work
    jobs, warm = eight_hundred(prefix), warm_up(prefix, FAMILIES)
    small = serve(FEATHER, gpu, jobs, rows=SIZE, warm=warm)
    row = {"gpu": gpu, "prefix": prefix, "8 x 100": small.tokens_per_second}
    for reads in READS:
        mixed = serve(Arm("mixed", "fcfs", reads), gpu, jobs, rows=FAMILIES * SIZE, warm=warm)
        row["mixed rows"] = mixed.rows
        row[f"mixed, {reads}"] = mixed.tokens_per_second
        row[f"ratio, {reads}"] = small.tokens_per_second / mixed.tokens_per_second
    return row


def homogeneous_verdict(rows: Sequence[Row]) -> Verdict:
    """Asked against rows as SGLang leaves them; beside it, against what costs less than small batches."""
    as_admitted, by_family, shared = (
        Part(f"against one mixed batch, {reads}", [row[f"ratio, {reads}"] for row in rows], OUT_DECODES)
        for reads in READS
    )
    return verdict([as_admitted], [by_family, shared])


def foreign(work: Work) -> Row:
    """Time of a decode step with one foreign request among a hundred, over that of a hundred siblings."""
    gpu, prefix = work
    row = {"gpu": gpu, "prefix": prefix}
    for reads in READS:
        of_gpu = cost(gpu, reads)
        alone, mixed = (of_gpu.decode(batch_of(sizes, prefix)) for sizes in ((SIZE,), (SIZE - 1, 1)))
        row[f"step ms, {reads}"] = alone * 1e3
        row[f"ratio, {reads}"] = mixed / alone
    return row


def foreign_verdict(rows: Sequence[Row]) -> Verdict:
    """Asked of rows as SGLang leaves them."""
    as_admitted, *others = (
        Part(f"time with over without, {reads}", [row[f"ratio, {reads}"] for row in rows], NOTICED) for reads in READS
    )
    return verdict([as_admitted], others)


def batch_of(sizes: Sequence[int], prefix: int) -> Batch:
    """Rows of families of these sizes, with ``SUFFIX`` tokens of their own."""
    pool = Pool(1 << 30, LEVEL_TOKENS)
    levels = prefix // LEVEL_TOKENS
    for family, size in enumerate(sizes):
        path = array("Q", ((family + 1) << 32 | i for i in range(levels)))
        for _ in range(size):
            pool.hold(path)
    pool.private = sum(sizes) * SUFFIX
    length = prefix + SUFFIX
    return Batch(sum(sizes), pool.total_kv, pool.distinct_kv, pool.shared_kv, length, pool.reuse_distance())


EXPERIMENTS = (
    Experiment(
        name="homogeneous",
        claim="A smaller batch whose requests share one prefix can out-decode a larger mixed batch",
        source="abstract",
        method=f"{FAMILIES * SIZE} requests of {FAMILIES} cached prefixes, {SUFFIX} tokens of their own, {OUTPUT} "
        f"generated: eight batches of {SIZE}, one a family, against one batch of all, or of as many as the KV pool "
        "takes; tokens a second",
        kind=MODELLED,
        work=_prefixes,
        measure=homogeneous,
        verdict=homogeneous_verdict,
    ),
    Experiment(
        name="foreign",
        claim="Does one foreign request in a homogeneous batch cost a tenth of its step time or more?",
        source="question",
        method=f"a decode step of {SIZE - 1} rows of one family and one of another, against {SIZE} of one family",
        kind=MODELLED,
        work=_prefixes,
        measure=foreign,
        verdict=foreign_verdict,
    ),
)
