"""What one arm gave, and the JSON that programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feather_sglang.bench.arms import BASELINE
from feather_sglang.bench.client import Reply
from feather_sglang.bench.counters import Counters

SCHEMA = {"name": "feather bench serve", "version": 1}

DECISIONS = ("admitted", "stops", "barrier_waits")
"""What the policy's state counts: requests admitted, passes cut short by the gate, and passes x requests held back."""


@dataclass(frozen=True)
class Run:
    """One workload on one server."""

    arm: str
    replies: Sequence[Reply]
    seconds: float
    """From the first request sent to the last token received."""
    cpu_seconds: float
    """CPU time of all processes of the server meanwhile."""
    counters: Counters
    cacheable_tokens: int
    decisions: Mapping[str, int] | None
    """Of ``DECISIONS``; None: a policy of SGLang's own."""
    start_seconds: float
    """From the server's start until it answered."""

    @property
    def output_tokens(self) -> int:
        return sum(reply.output_tokens for reply in self.replies)

    @property
    def steps(self) -> int:
        return self.counters.prefill_steps + self.counters.decode_steps

    @property
    def cached_tokens(self) -> int:
        return sum(reply.cached_tokens for reply in self.replies)

    def summary(self) -> dict[str, Any]:
        """``arms[NAME]``: times in seconds, throughput in output tokens."""
        ttft = [reply.ttft for reply in self.replies]
        tpot = [reply.tpot for reply in self.replies]
        return {
            "throughput_tok_s": self.output_tokens / self.seconds,
            "tok_per_cpu_s": self.output_tokens / self.cpu_seconds,
            "ttft_s": {"mean": mean(ttft), "p50": percentile(ttft, 50), "p99": percentile(ttft, 99)},
            "tpot_s": {"mean": mean(tpot), "p99": percentile(tpot, 99)},
            "steps": self.steps,
            "prefill_tokens": self.counters.prefill_tokens,
            "cached_tokens": self.cached_tokens,
            "cacheable_tokens": self.cacheable_tokens,
        }

    def row(self) -> dict[str, Any]:
        """The run with all that was counted."""
        return {
            "arm": self.arm,
            "requests": len(self.replies),
            "prompt_tokens": sum(reply.prompt_tokens for reply in self.replies),
            "output_tokens": self.output_tokens,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "prefill_steps": self.counters.prefill_steps,
            "decode_steps": self.counters.decode_steps,
            "decisions": None if self.decisions is None else dict(self.decisions),
            "start_seconds": self.start_seconds,
            **self.summary(),
        }


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


def report(runs: Sequence[Run], circumstances: Circumstances) -> dict[str, Any]:
    """The JSON object of ``feather bench serve``, the baseline first; ``ratio_to_fcfs`` compares output tokens per
    CPU-second."""
    runs = sorted(runs, key=lambda run: run.arm != BASELINE)
    arms = {run.arm: run.summary() for run in runs}
    baseline = arms.get(BASELINE)
    return {
        "schema": SCHEMA,
        **asdict(circumstances),
        "rows": [run.row() for run in runs],
        "arms": arms,
        "ratio_to_fcfs": {
            name: arm["tok_per_cpu_s"] / baseline["tok_per_cpu_s"] for name, arm in arms.items() if baseline
        },
    }


def write(report: Mapping[str, Any], path: Path) -> None:
    """All of it or nothing, so that whoever reads meanwhile finds JSON."""
    scratch = path.with_name(f".{path.name}.new")
    scratch.write_text(json.dumps(report, indent=2) + "\n")
    scratch.replace(path)
