"""A trace as it was read, whatever its format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from feather_sglang.simulate.traces.lines import Line, TraceError
from feather_sglang.simulate.workload import Job


class TraceFile(NamedTuple):
    """The requests of a file, in order of arrival, the first at 0 seconds."""

    path: Path
    format: str
    jobs: list[Job]
    lines: list[int]
    """For each job, the line that it is from."""
    level_tokens: int
    """Tokens of a level of the jobs."""
    notes: tuple[str, ...] = ()
    """What the file does not say and was assumed instead."""

    def at_speed(self, speed: float) -> list[Job]:
        """The jobs, arriving ``speed`` times as fast."""
        return [job._replace(arrival=job.arrival / speed) for job in self.jobs]

    def check(self, context: int, kv_tokens: int, machine: str) -> None:
        """Whether a machine could serve each request by itself.

        :raises TraceError: naming the line of the first that it could not.
        """
        for job, line in zip(self.jobs, self.lines, strict=True):
            needs, most = job.length + job.output, min(context, kv_tokens)
            if needs > most:
                limit = "context" if most == context else "KV pool"
                raise TraceError(
                    f"{self.path}, line {line}: the request needs {needs:,} tokens ({job.length:,} in, {job.output:,} "
                    f"out); expected at most {most:,}, the {limit} of {machine}. Remove the line, or take a profile "
                    "with more."
                )


def in_order(
    path: Path, format: str, read: list[tuple[int, Job]], level_tokens: int, notes: tuple[str, ...] = ()
) -> TraceFile:
    """A trace of jobs with their lines: sorted by arrival, stably, and numbered.

    :raises TraceError: if there are none.
    """
    if not read:
        raise TraceError(f"{path} holds no request; expected one a line")
    read = sorted(read, key=lambda pair: pair[1].arrival)
    first = read[0][1].arrival
    jobs = [job._replace(id=id, arrival=job.arrival - first) for id, (_, job) in enumerate(read)]
    return TraceFile(path, format, jobs, [line for line, _ in read], level_tokens, notes)


Reader = Callable[[Path, Iterator[Line], int | None], TraceFile]
"""Makes a trace of a file's lines; of the first ``limit`` requests only, if there is a limit."""
