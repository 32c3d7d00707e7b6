"""A plugin for servers under test, on several ranks: a gate that decides by measured nanoseconds, and failures.

Environment: ``FEATHER_TEST_STALL=N`` has the core of every rank name nobody after N admissions, until it is built anew,
``FEATHER_TEST_FAIL=N`` has that of the last rank alone fail, which then does not wait long for the others. Each rank
prints its digest after every admission pass.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feather_sglang.core import gates
from feather_sglang.core.interface import Admissions, Candidate, Limits, Step, View
from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.sglang import ranks
from feather_sglang.sglang.pace import Pace

_admitted = 0


class Noise:
    """Takes as many candidates as the sum of all measured nanoseconds says: nothing could be more sensitive."""

    name = "static"

    def __init__(self, seed: int = 0) -> None:
        self.nanoseconds = self.steps = 0

    def cut(self, view: View, candidates: Sequence[Candidate]) -> int:
        return self.nanoseconds % 7 % (len(candidates) + 1)

    def observe(self, step: Step) -> None:
        self.steps += 1
        self.nanoseconds += int(step.seconds * 1e9) + step.seq

    def state(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def dump(self) -> dict[str, Any]:
        return {}

    def load(self, learned: Mapping[str, Any]) -> None:
        pass


def register() -> None:
    """SGLang's entry point ``sglang.srt.plugins``: the gate goes by the name ``static``."""
    if "sglang.srt.managers.scheduler" not in sys.modules:
        return
    gates._GATES["static"] = Noise
    Pace.LEAST_SPAN = 0.01  # a fast machine is not busy for a second
    plan, settle = SchedulerCore.plan_admissions, SchedulerCore.settle
    due = {name: int(os.environ.get(f"FEATHER_TEST_{name}") or sys.maxsize) for name in ("STALL", "FAIL")}
    stalled: list[SchedulerCore] = []

    def planned(core: SchedulerCore, limits: Limits) -> Admissions:
        import torch

        last = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1
        if last and _admitted >= due["FAIL"]:
            due["FAIL"] = sys.maxsize
            ranks.PATIENCE = 2.0  # the others never come
            raise MemoryError("on one rank")
        if _admitted >= due["STALL"] and not stalled:
            stalled.append(core)
        if core in stalled:
            return Admissions([], held=0, kept=0, skipped=0, stop=None)
        return plan(core, limits)

    def settled(core: SchedulerCore, reused: Mapping[int, int], refused: Mapping[int, str]) -> None:
        global _admitted
        import torch

        settle(core, reused, refused)
        if reused:
            _admitted += len(reused)
            print(f"rank {torch.distributed.get_rank()} admitted {_admitted} digest {core.decisions[1]}", flush=True)

    SchedulerCore.plan_admissions = planned  # type: ignore[method-assign]
    SchedulerCore.settle = settled  # type: ignore[method-assign, assignment]


def cores(ranks: int) -> str:
    """A core for each rank, as ``SGLANG_CPU_OMP_THREADS_BIND``: of those that this process may use, however few."""
    ours = sorted(os.sched_getaffinity(0))
    return "|".join(str(ours[rank % len(ours)]) for rank in range(ranks))


def install(folder: Path) -> dict[str, str]:
    """Make the plugin one of an environment; returns what must be added to it."""
    info = folder / "feather_rank_faults-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: feather-rank-faults\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nfeather_rank_faults = tests.harness.rank_faults:register\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), root, os.environ.get("PYTHONPATH"))))}
