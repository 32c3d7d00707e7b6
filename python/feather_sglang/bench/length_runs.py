"""What ``feather bench length`` runs on modelled steps: bins of output length, static and before continuous batching.

Requests arrive as in Mooncake's conversations, faster, and generate as many tokens; prompts, and what they share, are
``SCALE`` times as long, so that decoding and not prefill decides. Latency is from the arrival to the last token.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from feather_sglang.bench import simulate_bins
from feather_sglang.bench.results import mean, percentile
from feather_sglang.bench.workloads import files
from feather_sglang.cli.errors import UsageError
from feather_sglang.simulate.engine import Engine
from feather_sglang.simulate.policies import make_engine
from feather_sglang.simulate.profiles import PROFILES
from feather_sglang.simulate.traces import read
from feather_sglang.simulate.workload import Job, Trace

PROFILE = "h200"
ROWS = 64
SCALE = 1 / 16
SPEED = 16.0
"""Arrivals so many times as fast as recorded: more than twice as fast as first come, first served serves them."""
LEVEL_TOKENS = int(512 * SCALE)
UNIFORM = (64, 1024)
"""Output tokens of the other workload, everything else alike."""
LANES = (1, 2, 4, 8, 16, 32)
MAX_WAIT = 60.0
"""Seconds; the default of ``--feather-max-wait``."""

THEORY = (32, 512)
"""Output tokens with which theory is compared."""
BATCH = 16


def _noisy(sigma: float) -> Callable[[Job], int]:
    return lambda job: max(1, round(job.output * random.Random(job.id).lognormvariate(0.0, sigma)))


PREDICTORS: dict[str, tuple[str, Callable[[Job], int | None]]] = {
    "oracle": ("request", lambda job: job.output),
    "noise30": ("request", _noisy(0.3)),
    "noise100": ("request", _noisy(1.0)),
    "family": ("family", lambda job: None),
}
"""Of ``--feather-length``, and what a request says. Noise is a factor, log-normal, of median 1."""

MODES = {"static": "offline", "lanes": "never"}
"""The gate of each."""


class Arm(NamedTuple):
    """What is run."""

    workload: str
    mode: str
    """``fcfs``, or one of ``MODES``."""
    lanes: int = 1
    predictor: str = "oracle"


def arms(workload: str, lanes: tuple[int, ...]) -> list[Arm]:
    """FCFS first. In one lane a prediction changes nothing."""
    several = [each for each in lanes if each > 1]
    return [
        Arm(workload, "fcfs"),
        *(Arm(workload, mode) for mode in MODES),
        *(Arm(workload, *each) for each in product(MODES, several, PREDICTORS)),
    ]


@cache
def jobs(workload: str) -> list[Job]:
    """The requests of ``mooncake`` or ``uniform``.

    :raises UsageError: if the committed sample of the trace is not there.
    """
    path = files.FOLDER / "mooncake" / "conversation_head.jsonl"
    if not path.is_file():
        raise UsageError(f"there is no {path}: run this from a clone of the repository, installed with `make setup`")
    draw = random.Random(1)
    made = []
    for job in read(path).at_speed(SPEED):
        length = max(int(job.length * SCALE), len(job.levels) * LEVEL_TOKENS, 1)
        output = job.output if workload == "mooncake" else draw.randint(*UNIFORM)
        made.append(Job(job.id, job.arrival, array("Q", job.levels), length, output))
    return made


def serve(arm: Arm) -> dict[str, Any]:
    """The figures of an arm. Times in modelled seconds."""
    if arm.mode == "fcfs":
        engine = _served(arm.workload, "fcfs")
    else:
        length, expected = PREDICTORS[arm.predictor]
        engine = _served(
            arm.workload,
            "feather",
            expected=expected,
            gate=MODES[arm.mode],
            lanes=arm.lanes,
            length=length,
            max_wait_tokens=int(MAX_WAIT * _pace(arm.workload)),
        )
    latency = [each.finished - each.arrived for each in engine.served]
    state = engine.core.state() if arm.mode != "fcfs" else {}  # type: ignore[attr-defined]
    return {
        **arm._asdict(),
        "seconds": engine.now,
        "throughput_tok_s": sum(each.job.output for each in engine.served) / engine.now,
        "latency_s": {"mean": mean(latency), "p50": percentile(latency, 50), "p99": percentile(latency, 99)},
        "decode_steps": engine.decode_steps,
        "length_error": state.get("length_error"),
    }


def _served(workload: str, policy: str, **options: Any) -> Engine:
    profile = PROFILES[PROFILE]
    machine = replace(profile.machine(LEVEL_TOKENS), rows=ROWS)
    engine = make_engine(policy, Trace(jobs(workload)), profile.cost, machine, keep_served=True, **options)
    for _ in engine.run():
        pass
    return engine


@cache
def _pace(workload: str) -> float:
    """Tokens that first come, first served computes and generates in a second: as a server learns it."""
    engine = _served(workload, "fcfs")
    return engine.scheduled / engine.now


def theory(lanes: int) -> dict[str, Any]:
    """c_k of U[``THEORY``] in static batches of ``BATCH``, by the closed form and through the core."""
    (row,) = simulate_bins.measure(Path("uniform:{},{}".format(*THEORY)), [lanes], BATCH, None)
    return {"workload": "theory", **row}
