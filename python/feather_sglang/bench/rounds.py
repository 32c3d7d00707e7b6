"""Rounds over all arms: each arm's server takes every workload, and what was measured is kept, whatever happens."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType

from feather_sglang.bench import client
from feather_sglang.bench.arms import Arm
from feather_sglang.bench.measure import measure
from feather_sglang.bench.results import Run
from feather_sglang.bench.servers import Servers
from feather_sglang.bench.workloads import Workload
from feather_sglang.cli import server


@dataclass
class Ended:
    """What the rounds gave."""

    runs: list[Run] = field(default_factory=list)
    stopped: str | None = None
    """Why they ended early."""
    status: int = 0
    """Of the command."""


@dataclass(frozen=True)
class Rounds:
    """All arms on all workloads."""

    servers: Servers
    arms: Mapping[str, Arm]
    workloads: Sequence[Workload]
    tokenizer: str

    def run(self, repeats: int, keep: Callable[[list[Run]], None]) -> Ended:
        """Every other round goes through the arms backwards, so that what drifts meanwhile favours none.

        :param keep: is told all runs so far, after each.
        """
        ended, name, doing = Ended(), "", ""
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            for round in range(repeats):
                names = list(self.arms)[:: -1 if round % 2 else 1]
                for name in names:
                    doing = name + (f", round {round + 1} of {repeats}" if repeats > 1 else "")
                    self._arm(name, round, ended, keep)
        except server.ServerFailed as failure:
            ended.stopped, ended.status = f"stopped at {doing}: {str(failure).partition(';')[0]}", 1
            print(f"feather: error: {doing}: {failure}", file=sys.stderr)
        except (client.RequestFailed, OSError) as failure:
            ended.stopped, ended.status = f"stopped at {doing}: {failure}", 1
            log = self.servers.log(name)
            where = "" if log is None else f"; the server's log is {log}"
            print(f"feather: error: {doing}: {failure}{where}", file=sys.stderr)
        except KeyboardInterrupt:
            ended.stopped, ended.status = f"interrupted at {doing}; no server of ours is left", 130
            if not ended.runs:
                print(f"\nfeather: {ended.stopped}", file=sys.stderr)
        return ended

    def _arm(self, name: str, round: int, ended: Ended, keep: Callable[[list[Run]], None]) -> None:
        with self.servers.serving(name, self.arms[name]) as (target, start_seconds):
            for workload in self.workloads:
                run = measure(target, workload, arm=name, round=round, tokenizer=self.tokenizer)
                ended.runs.append(replace(run, start_seconds=start_seconds))
                keep(ended.runs)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
