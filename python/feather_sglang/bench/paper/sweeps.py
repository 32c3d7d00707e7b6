"""Whole runs: throughput against SGLang's policies and against a prefix-aware kernel; nothing shared; arrival rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product

from feather_sglang.bench.paper.arms import (
    BANDIT,
    BASELINES,
    FCFS,
    FCFS_SHARING,
    FEATHER,
    FEATHER_SHARING,
    FEATHER_UNBOUNDED,
    GPUS,
    LEVEL_TOKENS,
    STATIC,
    Arm,
    families,
    serve,
)
from feather_sglang.bench.paper.experiment import MODELLED, Experiment, Row, Work
from feather_sglang.bench.paper.verdict import Part, Verdict, verdict
from feather_sglang.simulate.workload import Families, Job

REQUESTS, QUICK_REQUESTS = 1000, 300
GROUPS, QUICK_GROUPS = (1, 4, 16, 100), (8,)
PREFIXES, QUICK_PREFIXES = (1024, 2048, 4096, 10240), (1024, 8192)
OUTPUTS, QUICK_OUTPUTS = (1, 10, 50, 100, 200), (1, 100)
RATES, QUICK_RATES = (0.5, 0.8, 1.0, 1.2, 2.0), (0.5, 2.0)
PAPERS = (STATIC, BANDIT)
OURS = (FEATHER, FEATHER_UNBOUNDED, FEATHER_SHARING)
NAMES = {
    STATIC.name: "the paper's order, static gate",
    BANDIT.name: "the paper's order, bandit",
    FEATHER.name: "this plugin: its order, rows sorted",
    FEATHER_UNBOUNDED.name: "this plugin without its bound on waiting",
    FEATHER_SHARING.name: "this plugin on a sharing kernel",
}
TWICE = 2.0
EQUAL = 0.99
"""Of a throughput."""
EARLY = 0.95
"""Of FCFS's p99 of TTFT over ours."""


def _jobs(of: Families, requests: int, rate: float | None = None) -> list[Job]:
    return list(islice(of.jobs(1, LEVEL_TOKENS, rate), requests))


def compared(work: Work) -> Row:
    """Tokens a second of every arm, and of those that are tested, over the best of SGLang's policies."""
    row, speed = _speeds(work, BASELINES)
    best = max(speed[arm.name] for arm in BASELINES)
    return row | {f"ratio, {arm.name}": speed[arm.name] / best for arm in (*PAPERS, *OURS)}


def against_kernel(work: Work) -> Row:
    """The same over FCFS on an attention kernel that shares."""
    row, speed = _speeds(work, (FCFS_SHARING,))
    return row | {f"ratio, {arm.name}": speed[arm.name] / speed[FCFS_SHARING.name] for arm in (*PAPERS, *OURS)}


def _speeds(work: Work, others: Sequence[Arm]) -> tuple[dict[str, object], dict[str, float]]:
    gpu, groups, prefix, output, outputs, requests = work
    jobs = _jobs(families(groups, prefix, output, outputs), requests)
    speed = {arm.name: serve(arm, gpu, jobs).tokens_per_second for arm in (*others, *PAPERS, *OURS)}
    return {"gpu": gpu, "groups": groups, "prefix": prefix, "output": output, **speed}, speed


def _groups(quick: bool) -> Iterator[Work]:
    chosen = (QUICK_GROUPS, QUICK_PREFIXES) if quick else (GROUPS, PREFIXES)
    for gpu, groups, prefix in product(GPUS, *chosen):
        yield gpu, groups, prefix, 100, "uniform", QUICK_REQUESTS if quick else REQUESTS


def _lengths(quick: bool) -> Iterator[Work]:
    for gpu, output in product(GPUS, QUICK_OUTPUTS if quick else OUTPUTS):
        yield gpu, 8, 4096, output, "fixed", QUICK_REQUESTS if quick else REQUESTS


def twice(rows: Sequence[Row]) -> Verdict:
    """At least twice the best of FCFS, LPM and DFS-weight."""
    return verdict([_paper("ratio", rows, TWICE)], _each("ratio", rows, TWICE))


def as_good_as_the_kernel(rows: Sequence[Row]) -> Verdict:
    """At least what FCFS gets on a sharing kernel."""
    return verdict([_paper("ratio", rows, EQUAL)], _each("ratio", rows, EQUAL))


def _paper(figure: str, rows: Sequence[Row], least: float, of: str = "") -> Part:
    """What is asked of the paper's levers: of the better of its gates, cell by cell, as one of them learns from nothing
    in every run."""
    ratios = [max(row[f"{figure}, {arm.name}"] for arm in PAPERS) for row in rows]
    return Part(f"the paper's order, the better gate{of}", ratios, least)


def _each(figure: str, rows: Sequence[Row], least: float, of: str = "") -> list[Part]:
    arms = [arm for arm in (*PAPERS, *OURS) if f"{figure}, {arm.name}" in rows[0]]
    return [Part(NAMES[arm.name] + of, [row[f"{figure}, {arm.name}"] for row in rows], least) for arm in arms]


def unshared(work: Work) -> Row:
    """Nothing is shared: what ours make of it, over FCFS."""
    gpu, requests = work
    jobs = _jobs(Families((0,) * 8, suffix=(256, 2048), output=100, outputs="uniform"), requests)
    fcfs = serve(FCFS, gpu, jobs)
    row: dict[str, object] = {"gpu": gpu, "steps, fcfs": fcfs.steps, "computed, fcfs": fcfs.computed}
    for arm in (*PAPERS, FEATHER):
        served = serve(arm, gpu, jobs)
        row[f"steps, {arm.name}"] = served.steps
        row[f"computed, {arm.name}"] = served.computed
        row[f"ratio, {arm.name}"] = served.tokens_per_second / fcfs.tokens_per_second
        row[f"earlier, {arm.name}"] = fcfs.ttft_p99_s / served.ttft_p99_s
    return row


def equal(rows: Sequence[Row]) -> Verdict:
    """Throughput and p99 of TTFT as FCFS has them."""
    figures = (("ratio", EQUAL, ": throughput"), ("earlier", EARLY, ": p99 TTFT, FCFS's over it"))
    return verdict(
        [_paper(figure, rows, least, of) for figure, least, of in figures],
        [part for figure, least, of in figures for part in _each(figure, rows, least, of)],
    )


def arrivals(work: Work) -> Row:
    """Poisson, at a multiple of what FCFS can serve; ratios to FCFS."""
    gpu, times, requests = work
    of = families(8, 4096, 100)
    backlog = _jobs(of, requests)
    tokens = sum(job.output for job in backlog)
    rate = serve(FCFS, gpu, backlog).tokens_per_second / (tokens / requests)
    jobs = _jobs(of, requests, times * rate)
    fcfs = serve(FCFS, gpu, jobs)
    row: dict[str, object] = {
        "gpu": gpu,
        "rate": times,
        "requests/s": times * rate,
        "p99 ttft s, fcfs": fcfs.ttft_p99_s,
    }
    for arm in (*PAPERS, FEATHER):
        served = serve(arm, gpu, jobs)
        row[f"ratio, {arm.name}"] = served.tokens_per_second / fcfs.tokens_per_second
        row[f"earlier mean, {arm.name}"] = fcfs.ttft_mean_s / served.ttft_mean_s
        row[f"earlier, {arm.name}"] = fcfs.ttft_p99_s / served.ttft_p99_s
    return row


def _rates(quick: bool) -> Iterator[Work]:
    for gpu, times in product(GPUS, QUICK_RATES if quick else RATES):
        yield gpu, times, QUICK_REQUESTS if quick else REQUESTS


def _devices(quick: bool) -> Iterator[Work]:
    for gpu in GPUS:
        yield gpu, QUICK_REQUESTS if quick else REQUESTS


ALL_AT_ONCE = "128 to 384 tokens of their own, all at once, nothing cached"
OVER_THE_BEST = "tokens a second over the best of FCFS, LPM and DFS-weight with rows as admitted"
EXPERIMENTS = (
    Experiment(
        name="groups",
        claim="2 to 10 times the throughput of FCFS, LPM and DFS-weight on shared prefixes of 1K to 10K tokens",
        source="abstract",
        method=f"{REQUESTS} requests of 1 to 100 prefixes, {ALL_AT_ONCE}, 1 to 199 generated; {OVER_THE_BEST}",
        kind=MODELLED,
        work=_groups,
        measure=compared,
        verdict=twice,
    ),
    Experiment(
        name="decode-length",
        claim="Is it 2 to 10 times at every decode length from 1 to 200 tokens?",
        source="question",
        method=f"{REQUESTS} requests of 8 prefixes of 4,096, {ALL_AT_ONCE}; {OVER_THE_BEST}",
        kind=MODELLED,
        work=_lengths,
        measure=compared,
        verdict=twice,
    ),
    Experiment(
        name="arrival-rate",
        claim="Poisson arrivals: at every rate at least FCFS's throughput, and no later p99 TTFT?",
        source="question",
        method=f"{REQUESTS} requests of 8 prefixes of 4,096, at 0.5 to 2 times what FCFS can serve; ratios to FCFS",
        kind=MODELLED,
        work=_rates,
        measure=arrivals,
        verdict=equal,
    ),
    Experiment(
        name="no-sharing",
        claim="Nothing shared: equal to FCFS",
        source="abstract",
        method=f"{REQUESTS} requests of 256 to 2,048 tokens, no two alike, 1 to 199 generated, all at once",
        kind=MODELLED,
        work=_devices,
        measure=unshared,
        verdict=equal,
    ),
    Experiment(
        name="kernel",
        claim="Equal to or better than a prefix-aware attention kernel (PAT), without touching the kernel",
        source="abstract",
        method="the runs of `groups`: plain kernel, over FCFS on one that reads shared KV once (not PAT itself)",
        kind=MODELLED,
        work=_groups,
        measure=against_kernel,
        verdict=as_good_as_the_kernel,
    ),
)
