"""The runs of ``feather bench gates``: surfaces, fixed gates, and one gate on one surface with one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from feather_sglang.core.gates import make_gate
from feather_sglang.core.gates.never import Never
from feather_sglang.core.gates.static import Static
from feather_sglang.core.interface import EPISODE_STEPS, Candidate, Gate, View
from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.core.settings import GATES, Settings
from feather_sglang.simulate.cost import CPU, GPUS, KNEE, Cost, Drift, Roofline
from feather_sglang.simulate.engine import Engine, Machine
from feather_sglang.simulate.workload import Backlog, Families, Job

MACHINE = Machine(rows=128, kv_tokens=400_000, level_tokens=256)
FAMILIES = Families((8192,) * 8, suffix=(128, 384), output=32.0, outputs="narrow")
"""Eight prefixes of 8,192 tokens, all cached; 24 to 40 tokens generated, as offline jobs with a length limit do."""
FOUR = FAMILIES._replace(prefixes=FAMILIES.prefixes[:4])
"""Where age mixes eight families in the queue, so that few of one come one after the other, it mixes four less."""
UNSHARED = Families((0,) * 8, suffix=(256, 2048), output=32.0, outputs="geometric")
WAITING = 512
SPREAD = 0.2
"""The mean output of a seed differs by so much, or families would come and go in the same step of every seed, and the
rate over a window would say how many of them ended in it."""
WARM_UP, PAUSE = 300, 48
"""Decode steps: twice as many as admit a whole queue, and as many as the longest request of a family takes."""
ORDER = Settings().order
NOISE, OUTLIERS, OUTLIER = 0.15, 0.01, 5.0
"""What a gate sees of a time: log-normal noise, and a share of outliers of so many times."""


class Surface(NamedTuple):
    """A cost and a workload."""

    name: str
    what: str
    cost: Callable[[int], Cost]
    """Of the decode steps of a run."""
    families: Families = FAMILIES
    drifts: bool = False


SURFACES = (
    Surface("cpu", "CPU fit, shared KV read once", lambda steps: CPU),
    Surface("roofline-sorted", "RTX 6000 Ada roofline, rows by family", lambda steps: Roofline(GPUS["rtx6000ada"])),
    Surface(
        "roofline-admission",
        "RTX 6000 Ada roofline, rows as admitted",
        lambda steps: Roofline(GPUS["rtx6000ada"], by_family=False),
    ),
    Surface("knee-sorted", "L2 knee, rows by family", lambda steps: replace(KNEE, by_family=True)),
    Surface("knee-admission", "L2 knee, rows as admitted", lambda steps: KNEE),
    Surface("knee-four", "L2 knee, rows as admitted, four families", lambda steps: KNEE, FOUR),
    Surface(
        "drift",
        "L2 knee, rows as admitted; then CPU fit",
        lambda steps: Drift(KNEE, CPU, WARM_UP + PAUSE + steps // 2),
        drifts=True,
    ),
    Surface("unshared", "CPU fit, nothing shared", lambda steps: CPU, UNSHARED),
)
LOSS = 5
"""Tip chunks: a sibling costs none, and a stranger the whole tip, so every threshold from 0 to 31 is the same gate."""
FLOORS, QUICK_FLOORS = (1, 2, 4, 8, 16, 32, 64), (1, 4, 16, 64)


class Threshold(Static):
    """The static gate with a floor of its own: from so many rows on, stop where the tip loses more than ``LOSS``."""

    def __init__(self, floor: int, seed: int = 0) -> None:
        self.SMALL_LOSS = self.LOSS_WITH_PEERS = LOSS
        self.LOWEST = self.HIGHEST = floor
        super().__init__()


def gates(quick: bool) -> dict[str, Callable[[int], Gate]]:
    """By name: all gates, and the fixed ones among which the best is found."""
    made: dict[str, Callable[[int], Gate]] = {name: partial(make_gate, name) for name in GATES}
    for floor in QUICK_FLOORS if quick else FLOORS:
        made[f"floor {floor}"] = partial(Threshold, floor)
    return made


class Closed(Never):
    """Admits nobody."""

    name = "closed"

    def cut(self, view: View, candidates: Sequence[Candidate]) -> int:
        return 0


class Trajectory(NamedTuple):
    """One run, by decode step."""

    seconds: list[float]
    """True time since the decode step before, prefill included."""
    tokens: list[int]
    stops: int


def run(surface: Surface, gate: Gate, seed: int, steps: int, order: str = ORDER) -> Trajectory:
    """``steps`` decode steps in closed loop.

    They begin with an empty batch, as after a pause, and a queue in which age has mixed the families: before them, with
    the prefixes cached, ``WARM_UP`` steps run without stops, and ``PAUSE`` in which nobody is admitted.
    """
    settings = Settings(
        order=order,
        gate="static",
        chunk_size=MACHINE.level_tokens,
        kv_capacity=MACHINE.kv_tokens,
        max_wait_tokens=1 << 40,  # past the bound no gate is heeded
    )
    core = SchedulerCore(settings)
    core.gate = Never()
    output = surface.families.output * random.Random(seed).uniform(1 - SPREAD, 1 + SPREAD)
    families = surface.families._replace(output=output)
    source = Backlog(families.jobs(seed, MACHINE.level_tokens), WAITING)
    engine = Engine(core, source, surface.cost(steps), MACHINE, noise=noise(seed), episode=EPISODE_STEPS)
    engine.warm(_one_each(families))
    seconds, tokens, since, stops = [], [], 0.0, 0
    for done in engine.run():
        since += done.seconds
        if done.kind == "decode":
            if engine.decode_steps > WARM_UP + PAUSE:
                seconds.append(since)
                tokens.append(done.tokens)
            elif engine.decode_steps == WARM_UP:
                core.gate = Closed()
            elif engine.decode_steps == WARM_UP + PAUSE:
                core.gate = gate
                stops = core.state()["stops"]
            since = 0.0
            if len(seconds) == steps:
                break
    return Trajectory(seconds, tokens, core.state()["stops"] - stops)


def noise(seed: int) -> Callable[[float], float]:
    """From a true time to one that a gate sees."""
    rng = random.Random(seed + 1_000_003)

    def seen(seconds: float) -> float:
        seconds *= rng.lognormvariate(0.0, NOISE)
        return seconds * OUTLIER if rng.random() < OUTLIERS else seconds

    return seen


def _one_each(families: Families) -> Iterator[Job]:
    for family, path in enumerate(families.paths(MACHINE.level_tokens)):
        if path:
            yield Job((1 << 40) + family, 0.0, path, families.prefixes[family] + 1, 1, family)
