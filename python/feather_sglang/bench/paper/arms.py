"""What is compared in simulation: a policy, the order of rows, a kernel; on GPUs with assumed constants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from feather_sglang.simulate.cost import Cost, Roofline
from feather_sglang.simulate.policies import make_engine
from feather_sglang.simulate.profiles import PROFILES
from feather_sglang.simulate.workload import Families, Job, Trace

LEVEL_TOKENS = 256
GPUS = ("rtx6000ada", "a100", "h200")
ADMITTED, SORTED, SHARED = "as admitted", "sorted", "sharing"
"""Rows as SGLang leaves them, rows by family, and an attention kernel that reads shared KV once."""


class Arm(NamedTuple):
    """One way of serving."""

    name: str
    policy: str
    reads: str
    """``as admitted``, ``sorted`` or ``sharing``."""
    options: Mapping[str, Any] = {}
    """Of ``Settings``, for ``feather``."""


FCFS = Arm("fcfs", "fcfs", ADMITTED)
BASELINES = (FCFS, Arm("lpm", "lpm", ADMITTED), Arm("dfs-weight", "dfs-weight", ADMITTED))
UNBOUNDED = {"max_wait_tokens": 1 << 62}
"""No bound on how long a request is passed over."""
PAPER = {"order": "missing", "aging": 0.0, **UNBOUNDED}
"""The paper's order: fewest missing chunks first, then arrival, and nothing that bounds a wait."""
STATIC = Arm("paper, static gate", "feather", ADMITTED, {**PAPER, "gate": "static"})
BANDIT = Arm("paper, bandit", "feather", ADMITTED, {**PAPER, "gate": "ucb"})
HELD = {"order": "held"}
"""Serves a family until its queue is empty: of this plugin's orders the one that shares most."""
FEATHER = Arm("feather", "feather", SORTED, HELD)
FEATHER_UNBOUNDED = Arm("feather, unbounded", "feather", SORTED, {**HELD, **UNBOUNDED})
FCFS_SHARING = Arm("fcfs, sharing kernel", "fcfs", SHARED)
FEATHER_SHARING = Arm("feather, sharing kernel", "feather", SHARED, HELD)


def cost(gpu: str, reads: str) -> Cost:
    """A step on this GPU, with rows and kernel so."""
    plain = PROFILES[gpu].cost
    assert isinstance(plain, Roofline)
    return replace(plain, by_family=reads == SORTED, shares=reads == SHARED)


class Served(NamedTuple):
    """What an arm made of a workload. Times are modelled seconds."""

    tokens_per_second: float
    """Generated, from the first arrival until the last request is finished."""
    ttft_mean_s: float
    ttft_p99_s: float
    rows: float
    """Of a decode step, on average."""
    computed: int
    """Prompt tokens that were prefilled."""
    steps: int
    """Prefill and decode."""


def serve(arm: Arm, gpu: str, jobs: Sequence[Job], *, rows: int | None = None, warm: Iterable[Job] = ()) -> Served:
    """:param rows: of a batch at most; None: those of the profile.
    :param warm: served before, so that their prefixes are cached.
    """
    machine = PROFILES[gpu].machine(LEVEL_TOKENS)
    if rows is not None:
        machine = replace(machine, rows=rows)
    engine = make_engine(arm.policy, Trace(jobs), cost(gpu, arm.reads), machine, keep_served=True, **arm.options)
    engine.warm(warm)
    decoded = computed = steps = 0
    for done in engine.run():
        steps += done.kind != "idle"
        computed += done.computed
        decoded += done.batch.rows if done.kind == "decode" else 0
    waits = [each.first_token - each.arrived for each in engine.served]
    return Served(
        sum(each.job.output for each in engine.served) / engine.now,
        float(np.mean(waits)),
        float(np.percentile(waits, 99)),
        decoded / max(1, engine.decode_steps),
        computed,
        steps,
    )


def families(count: int, prefix: int, output: float, outputs: str = "uniform") -> Families:
    """``count`` families of one prefix length; suffixes of 128 to 384 tokens."""
    return Families((prefix,) * count, output=output, outputs=outputs)


def warm_up(prefix: int, count: int) -> list[Job]:
    """One request of each family, to have its prefix cached."""
    paths = families(count, prefix, 1).paths(LEVEL_TOKENS)
    return [Job((1 << 40) + i, 0.0, path, prefix + 1, 1, i) for i, path in enumerate(paths)]
