"""The runs of ``feather bench orders``: workloads, arms, and what one arm gave on one workload."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from feather_sglang.bench.results import mean, percentile
from feather_sglang.simulate.engine import Engine
from feather_sglang.simulate.policies import make_engine
from feather_sglang.simulate.profiles import Profile
from feather_sglang.simulate.workload import OUTPUTS, Families, Job, Trace

LEVEL_TOKENS = 64
SATURATING = 4_000
MAX_WAIT = 60.0
"""Seconds; the default of ``--feather-max-wait``."""
AGING = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
QUICK_AGING = (0.0, 0.02, 0.1, 0.2)
"""Tokens of advantage for each scheduled token of age."""


class Workload(NamedTuple):
    """Requests, and how much of a profile's machine they may use."""

    name: str
    what: str
    jobs: Callable[[int], Iterator[Job]]
    """Endless, all at 0 s; of a seed."""
    requests: int
    load: float | None
    """Arrivals, Poisson, in units of what FCFS serves of this workload in saturation; None: all at once."""
    rows: int | None = None
    """Fewer than the profile has."""
    kv_tokens: int | None = None
    warm: tuple[array[int], ...] = ()
    """Prefixes that are cached at the start."""


def mixed(seed: int) -> Iterator[Job]:
    """70% of 100 to 500 tokens in 20 families, 25% of 1,000 to 4,000, 5% of 8,000 to 16,000; the long ones unique.

    A short prompt shares half its length with its family, up to 256 tokens, of which whole chunks count.
    """
    rng = random.Random(seed)
    paths = Families((256,) * 20).paths(LEVEL_TOKENS)
    for id in range(1 << 30):
        kind = rng.random()
        low, high = (100, 500) if kind < 0.70 else (1_000, 4_000) if kind < 0.95 else (8_000, 16_000)
        length, family = rng.randint(low, high), rng.randrange(20)
        output = OUTPUTS["lognormal"](rng, 200)
        if kind < 0.70:
            yield Job(id, 0.0, paths[family][: length // 2 // LEVEL_TOKENS], length, output, family)
        else:
            yield Job(id, 0.0, array("Q"), length, output)


def _families(families: Families) -> Callable[[int], Iterator[Job]]:
    return lambda seed: families.jobs(seed, LEVEL_TOKENS)


_BURST = Families((4096,) * 20, output=64.0)
_WARM = Families((4096,) * 16, output=64.0)
_MANY = Families((10_240,) * 100, output=64.0)
_ALONE = Families((0,), suffix=(256, 2048), output=200.0, outputs="lognormal")

WORKLOADS = (
    Workload("mixed-90", "mixed lengths, 90% of capacity", mixed, 4000, 0.9),
    Workload("mixed-120", "mixed lengths, 120% of capacity, up to about 128 waiting", mixed, 1500, 1.2),
    Workload("mixed-120-long", "mixed lengths, 120% of capacity, more than 128 waiting", mixed, 4000, 1.2),
    Workload("burst", "cold burst: 20 families of 4,096 tokens at once", _families(_BURST), 800, None),
    Workload(
        "warm-few-rows",
        "16 cached families of 4,096 tokens, 32 rows; 120% of capacity",
        _families(_WARM),
        1000,
        1.2,
        rows=32,
        warm=tuple(_WARM.paths(LEVEL_TOKENS)),
    ),
    Workload(
        "warm-small-pool",
        "16 cached families of 4,096 tokens, a KV pool of 60,000 that holds 14 of them; 120% of capacity",
        _families(_WARM),
        1000,
        1.2,
        kv_tokens=60_000,
        warm=tuple(_WARM.paths(LEVEL_TOKENS)),
    ),
    Workload(
        "burst-small-pool",
        "cold burst: 100 families of 10,240 tokens at once, a KV pool of 160,000 that holds 15 of them",
        _families(_MANY),
        1000,
        None,
        kv_tokens=160_000,
    ),
    Workload("unshared", "nothing shared, 120% of capacity", _families(_ALONE), 3000, 1.2),
)


class Arm(NamedTuple):
    """A policy with its options."""

    name: str
    policy: str
    options: dict[str, Any]


FCFS = Arm("fcfs", "fcfs", {})


def arms(aging: tuple[float, ...], gate: str = "never") -> list[Arm]:
    """FCFS first; Feather's orders with a gate."""
    upstream = ("lpm", "lpm-lifted", "hrrn", "hrrn-lifted")
    return [
        FCFS,
        *(Arm(name, name, {}) for name in upstream),
        Arm("held", "feather", {"order": "held", "gate": gate}),
        *(Arm(f"missing {rate:g}", "feather", {"order": "missing", "aging": rate, "gate": gate}) for rate in aging),
    ]


def jobs(workload: Workload, seed: int, load: float | None) -> list[Job]:
    """:param load: requests a second, Poisson; None: all at once."""
    rng = random.Random(seed + 1_000_003)
    now, made = 0.0, []
    for job in islice(workload.jobs(seed), workload.requests):
        if load is not None:
            now += rng.expovariate(load)
        made.append(job._replace(arrival=now))
    return made


class Capacity(NamedTuple):
    """What FCFS serves of a workload in saturation."""

    requests: float
    """A second."""
    tokens: float
    """Computed and generated, a second."""


def capacity(workload: Workload, profile: Profile, seed: int) -> Capacity:
    """Of the middle half of 4,000 requests that are there from the start."""
    many = workload._replace(requests=SATURATING)
    engine = _engine(many, profile, FCFS, jobs(many, seed, None))
    began: tuple[float, int, int] | None = None
    for _ in engine.run():
        if engine.finished >= SATURATING // 4 and began is None:
            began = engine.now, engine.finished, engine.scheduled
        if engine.finished >= SATURATING * 3 // 4:
            break
    assert began is not None
    seconds = engine.now - began[0]
    return Capacity((engine.finished - began[1]) / seconds, (engine.scheduled - began[2]) / seconds)


def serve(
    workload: Workload,
    profile: Profile,
    arm: Arm,
    trace: list[Job],
    tokens_per_second: float,
    max_wait: float = MAX_WAIT,
) -> dict[str, Any]:
    """The figures of an arm. Times in modelled seconds; ``ttft_tokens`` in scheduled tokens.

    :param tokens_per_second: what makes tokens of Feather's bound of ``max_wait`` seconds, as a server learns it.
    """
    if arm.policy == "feather":
        arm = arm._replace(options={**arm.options, "max_wait_tokens": int(max_wait * tokens_per_second)})
    engine = _engine(workload, profile, arm, trace)
    most_waiting = 0
    for _ in engine.run():
        most_waiting = max(most_waiting, engine.waiting)
    served = engine.served
    ttft = [each.first_token - each.arrived for each in served]
    tokens = [each.ttft_tokens for each in served]
    tpot = [(each.finished - each.first_token) / (each.job.output - 1) for each in served if each.job.output > 1]
    return {
        "throughput_tok_s": sum(each.job.output for each in served) / engine.now,
        "ttft_s": {"mean": mean(ttft), "p50": percentile(ttft, 50), "p99": percentile(ttft, 99)},
        "ttft_tokens": {"mean": mean(tokens), "p50": percentile(tokens, 50), "p99": percentile(tokens, 99)},
        "tpot_s": {"mean": mean(tpot), "p99": percentile(tpot, 99)},
        "prefill_tokens": sum(each.computed for each in served),
        "most_waiting": most_waiting,
    }


def run(
    workload: Workload,
    profile: Profile,
    seed: int,
    aging: tuple[float, ...],
    gate: str = "never",
    max_wait: float = MAX_WAIT,
) -> dict[str, dict[str, Any]]:
    """Every arm on the same requests."""
    most = capacity(workload, profile, seed)
    trace = jobs(workload, seed, None if workload.load is None else workload.load * most.requests)
    return {arm.name: serve(workload, profile, arm, trace, most.tokens, max_wait) for arm in arms(aging, gate)}


def _engine(workload: Workload, profile: Profile, arm: Arm, trace: list[Job]) -> Engine:
    machine = profile.machine(LEVEL_TOKENS)
    machine = replace(machine, rows=workload.rows or machine.rows, kv_tokens=workload.kv_tokens or machine.kv_tokens)
    engine = make_engine(arm.policy, Trace(trace), profile.cost, machine, keep_served=True, **arm.options)
    engine.warm(Job((1 << 40) + i, 0.0, path, len(path) * LEVEL_TOKENS + 1, 1) for i, path in enumerate(workload.warm))
    return engine
