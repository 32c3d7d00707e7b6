"""Output of SGLang's ``bench_serving --output-details``: a run a line, with the lengths of its requests.

It holds neither prompts nor arrival times: nothing is known to be shared, and arrivals are drawn at the rate
that it was run with.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from pathlib import Path

from feather_sglang.simulate.traces.file import TraceFile, in_order
from feather_sglang.simulate.traces.lines import Line
from feather_sglang.simulate.workload import Job

LEVEL = 64


def read(path: Path, lines: Iterator[Line], limit: int | None) -> TraceFile:
    """See ``file.Reader``. Of several runs the last; what failed (no output) is left out."""
    runs = list(lines)
    line = runs[-1]
    if "input_lens" not in line.fields:
        raise line.wrong("`input_lens` is missing", "a run of `bench_serving --output-details`")
    inputs, outputs = line.wholes("input_lens"), line.wholes("output_lens")
    if len(inputs) != len(outputs):
        raise line.wrong(f"there are {len(inputs)} input_lens and {len(outputs)} output_lens", "as many")
    rate = line.fields.get("request_rate")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
        rate = float("inf")  # also "trace": the times are not in the file
    rng = random.Random(0)
    now, jobs = 0.0, []
    for length, output in list(zip(inputs, outputs, strict=True))[:limit]:
        if length and output:
            jobs.append((line.number, Job(0, now, array("Q"), length, output)))
            now += rng.expovariate(rate) if rate < float("inf") else 0.0
    arrivals = f"arrivals drawn, Poisson at {rate:g} a second" if rate < float("inf") else "all requests arrive at once"
    notes: tuple[str, ...] = ("bench_serving keeps no prompts: nothing is shared", arrivals)
    if len(runs) > 1:
        notes = (*notes, f"the last of {len(runs)} runs")
    return in_order(path, "bench_serving", jobs, LEVEL, notes)
