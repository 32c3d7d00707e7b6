"""What the runs gave, and the JSON that programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feather_sglang.bench.client import Reply
from feather_sglang.bench.counters import Counters
from feather_sglang.bench.kv import RunningKV

SCHEMA = {"name": "feather bench serve", "version": 1}

DECISIONS = ("admitted", "stops", "barrier_waits")
"""What the policy's state counts: requests admitted, passes cut short by the gate, and passes x requests held back."""


@dataclass(frozen=True)
class Run:
    """One workload on one server, or several on the same one taken together."""

    arm: str
    workload: str
    round: int
    """Which of the repeats, from 0."""
    replies: Sequence[Reply]
    seconds: float
    """From the first request sent to the last token received."""
    cpu_seconds: float | None
    """CPU time of all processes of the server meanwhile; None: it is not ours."""
    counters: Counters | None
    """None: the server does not count every pass."""
    cacheable_tokens: int
    kv: RunningKV
    policy_seconds: float | None
    """Time in the policy; None: nobody took it."""
    decisions: Mapping[str, int] | None
    """Of ``DECISIONS``; None: a policy of SGLang's own."""
    start_seconds: float | None = None
    """From the server's start until it answered; None: it ran already."""

    @property
    def output_tokens(self) -> int:
        return sum(reply.output_tokens for reply in self.replies)

    @property
    def cached_tokens(self) -> int:
        return sum(reply.cached_tokens for reply in self.replies)

    def summary(self) -> dict[str, Any]:
        """``arms[NAME]``: times in seconds, throughput in output tokens; None where the server did not tell."""
        ttft = [reply.ttft for reply in self.replies]
        tpot = [reply.tpot for reply in self.replies]
        counters = self.counters
        return {
            "throughput_tok_s": self.output_tokens / self.seconds,
            "tok_per_cpu_s": self.output_tokens / self.cpu_seconds if self.cpu_seconds else None,
            "ttft_s": {"mean": mean(ttft), "p50": percentile(ttft, 50), "p99": percentile(ttft, 99)},
            "tpot_s": {"mean": mean(tpot), "p99": percentile(tpot, 99)},
            "steps": None if counters is None else counters.prefill_steps + counters.decode_steps,
            "prefill_tokens": None if counters is None else counters.prefill_tokens,
            "cached_tokens": self.cached_tokens,
            "cacheable_tokens": self.cacheable_tokens,
            "mean_batch": counters.decode_tokens / counters.decode_steps
            if counters and counters.decode_steps
            else None,
            "distinct_over_total_kv": self.kv.distinct / self.kv.total if self.kv.total else None,
            "policy_share": None if self.policy_seconds is None else self.policy_seconds / self.seconds,
        }

    def row(self) -> dict[str, Any]:
        """The run with all that was counted."""
        counters = self.counters
        return {
            "arm": self.arm,
            "workload": self.workload,
            "round": self.round,
            "requests": len(self.replies),
            "prompt_tokens": sum(reply.prompt_tokens for reply in self.replies),
            "output_tokens": self.output_tokens,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "prefill_steps": None if counters is None else counters.prefill_steps,
            "decode_steps": None if counters is None else counters.decode_steps,
            "policy_seconds": self.policy_seconds,
            "decisions": None if self.decisions is None else dict(self.decisions),
            "start_seconds": self.start_seconds,
            **self.summary(),
        }


def together(runs: Sequence[Run]) -> Run:
    """Several workloads of one arm in one round, as one run: tokens and times are added up."""
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    seconds = sum(run.seconds for run in runs)
    shares = [run.seconds / seconds for run in runs]
    counted = [run.counters for run in runs if run.counters is not None]
    decided = [run.decisions for run in runs if run.decisions is not None]
    return Run(
        arm=first.arm,
        workload="all together",
        round=first.round,
        replies=[reply for run in runs for reply in run.replies],
        seconds=seconds,
        cpu_seconds=_sum([run.cpu_seconds for run in runs]),
        counters=Counters(*map(sum, zip(*counted, strict=True))) if len(counted) == len(runs) else None,
        cacheable_tokens=sum(run.cacheable_tokens for run in runs),
        kv=RunningKV(
            sum(share * run.kv.total for share, run in zip(shares, runs, strict=True)),
            sum(share * run.kv.distinct for share, run in zip(shares, runs, strict=True)),
        ),
        policy_seconds=_sum([run.policy_seconds for run in runs]),
        decisions={name: sum(each[name] for each in decided) for name in DECISIONS}
        if len(decided) == len(runs)
        else None,
        start_seconds=first.start_seconds,
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """Between two values linearly interpolated, as ``sglang.bench_serving`` does it."""
    return float(np.percentile(values, percent))


@dataclass(frozen=True)
class Circumstances:
    """What the numbers of a report are worth nothing without."""

    command: str
    machine: dict[str, Any]
    versions: dict[str, str]
    workload: str


def write(report: Mapping[str, Any], path: Path) -> None:
    """All of it or nothing, so that whoever reads meanwhile finds JSON."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(json.dumps(report, indent=2) + "\n")
    scratch.replace(path)
