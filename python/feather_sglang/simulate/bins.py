"""Static batches from bins of equal output length (Multi-Bin Batching, arXiv 2412.04504): theory, and through the core.

A static batch lasts as many steps as its longest output. With k bins of equal mass and batches of B from one bin, a
step serves c_k = B / E[longest of B outputs of a bin] requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from feather_sglang.simulate.cost import Linear
from feather_sglang.simulate.engine import Machine
from feather_sglang.simulate.policies import make_engine
from feather_sglang.simulate.workload import Job, Trace

_STEPS = Linear(1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""Every forward step takes a second."""


def uniform(low: float, high: float, bins: int, batch: int) -> float:
    """c_k for outputs of U[low, high] tokens, in requests a step: the paper's closed form.

    Outputs of ``low`` to ``high`` whole tokens are U[low - 1/2, high + 1/2], rounded.
    """
    return batch / ((low + high) / 2 + (batch - 1) / (batch + 1) * (high - low) / (2 * bins))


def of_sample(outputs: Sequence[float], bins: int, batch: int) -> float:
    """c_k for outputs drawn from these, in requests a step; bins of equal mass."""
    ordered = sorted(outputs)
    edges = [len(ordered) * each // bins for each in range(bins + 1)]
    longest = 0.0
    for start, end in pairwise(edges):
        size = end - start
        for i, output in enumerate(ordered[start:end]):
            longest += size * output * (((i + 1) / size) ** batch - (i / size) ** batch)
    return batch * len(ordered) / longest


class Served(NamedTuple):
    """What came of static batches."""

    requests: int
    """Of whole batches: the last of a bin is smaller."""
    steps: int
    """Forward steps of those."""
    batches: list[tuple[int, int]]
    """All batches: requests, and forward steps."""

    @property
    def throughput(self) -> float:
        """Requests a step, of whole batches."""
        return self.requests / self.steps


def simulated(outputs: Sequence[int], bins: int, batch: int) -> Served:
    """Requests of these outputs, all there from the start, in static batches by the scheduler core, which knows the
    outputs (the oracle)."""
    jobs = [Job(id, 0.0, array("Q"), 1, output) for id, output in enumerate(outputs)]
    machine = Machine(rows=batch, kv_tokens=batch * (max(outputs) + 2), prefill_tokens=batch)
    options = {"gate": "offline", "lanes": bins, "length": "request"}
    engine = make_engine("feather", Trace(jobs), _STEPS, machine, expected=lambda job: job.output, **options)
    batches: list[tuple[int, int]] = []
    rows = steps = 0
    formed = False
    for done in engine.run():
        if done.admitted and formed:  # the next batch
            batches.append((rows, steps))
            rows = steps = 0
        formed = not done.admitted
        rows += done.admitted
        steps += done.kind != "idle"
    batches.append((rows, steps))
    whole = [each for each in batches if each[0] == batch]
    return Served(sum(rows for rows, _ in whole), sum(steps for _, steps in whole), batches)
