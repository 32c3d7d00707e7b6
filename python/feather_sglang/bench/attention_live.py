"""``feather bench attention --live``: real servers on warm prefixes; what a decode pass costs, apart from the rest."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from feather_sglang.bench import client
from feather_sglang.bench.measure import running
from feather_sglang.bench.target import Target
from feather_sglang.bench.workloads import Request, Workload
from feather_sglang.cli.model import cache_folder
from feather_sglang.sglang.phases import VARIABLE

ROWS = 8
"""Requests that run at once."""
PREFIX, OWN, NEW = 4096, 16, 32
"""Tokens of a family's prefix, of a request's own, and generated."""

ARMS = {
    "feather, cascade": ["--schedule-policy", "feather", "--attention-backend", "feather-cascade"],
    "fcfs, cascade": ["--schedule-policy", "fcfs", "--attention-backend", "feather-cascade"],
    "fcfs, torch_native": ["--schedule-policy", "fcfs", "--attention-backend", "torch_native"],
}
SLOW = "fcfs, torch_native"


def measure(
    server_args: list[str], *, families: int = 8, per_family: int = 8, repeats: int = 3
) -> list[dict[str, Any]]:
    """One row an arm, printed as it is there: the median of ``repeats`` runs on one server.

    Interleaved arrivals, all at once. SGLang's own backend gets one request a family in every run: its prefill computes
    the attention of a cached prefix again. ``decode``: output tokens of decode passes per CPU-second in them.
    """
    draw = random.Random(1)
    prefixes = [[draw.randrange(100, 40_000) for _ in range(PREFIX)] for _ in range(families)]
    rows = []
    for arm, args in ARMS.items():
        each = 1 if arm == SLOW else per_family
        pool = families * PREFIX + repeats * families * each * (OWN + NEW) + 4096
        size = ["--max-running-requests", str(ROWS), "--max-total-tokens", str(pool), "--dtype", "float32"]
        print(f"{arm}: starting a server ...", flush=True)
        with _server([*server_args, *args, *size], arm) as server:
            target = Target(server.url, server.pid)
            client.send(target.url, Workload("warm", [Request(prefix, 1) for prefix in prefixes]))
            runs = [_run(target, _requests(draw, prefixes, each)) for _ in range(repeats)]
            attention = target.info()["internal_states"][0].get("feather_attention")
        row = {"arm": arm, "requests": families * each, "repeats": repeats, "attention": attention, "runs": runs}
        row |= {key: statistics.median(run[key] for run in runs) for key in ("decode", "whole")}
        rows.append(row)
        spread = f"{min(run['decode'] for run in runs):.1f}-{max(run['decode'] for run in runs):.1f}"
        print(f"{arm}: decode {row['decode']:.1f} ({spread}), whole run {row['whole']:.1f} tokens per CPU-second")
        if attention is not None:
            print(f"  plans from the scheduler {attention['scheduler']}, from slots {attention['slots']}", flush=True)
    return rows


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Of tokens per CPU-second, decode phase and whole run."""
    arms: Mapping[str, Mapping[str, Any]] = {row["arm"]: row for row in rows}
    first, same, slow = (arms[arm] for arm in ARMS)
    return {
        f"{key}_over_{name}": first[key] / other[key]
        for key in ("decode", "whole")
        for name, other in (("fcfs", same), ("torch_native", slow))
    }


def _requests(draw: random.Random, prefixes: list[list[int]], each: int) -> Workload:
    own = [[draw.randrange(100, 40_000) for _ in range(OWN)] for _ in range(each * len(prefixes))]
    requests = [Request(prefixes[i % len(prefixes)] + tokens, NEW) for i, tokens in enumerate(own)]
    return Workload(f"{len(prefixes)} warm families", requests)


def _run(target: Target, workload: Workload) -> dict[str, float]:
    before, cpu = _phases(target), target.cpu_seconds() or 0.0
    replies, seconds = client.send(target.url, workload)
    after, cpu = _phases(target), (target.cpu_seconds() or 0.0) - cpu
    decode = {key: after["decode"][key] - before["decode"][key] for key in after["decode"]}
    return {
        "decode": decode["rows"] / decode["cpu_s"],
        "whole": sum(reply.output_tokens for reply in replies) / cpu,
        "seconds": seconds,
        "cached_tokens": sum(reply.cached_tokens for reply in replies),
        "decode_passes": decode["passes"],
        "prefill_cpu_s": after["prefill"]["cpu_s"] - before["prefill"]["cpu_s"],
    }


def _phases(target: Target) -> dict[str, dict[str, float]]:
    phases: dict[str, dict[str, float]] = target.info()["internal_states"][0]["feather_phases"]
    return phases


@contextmanager
def _server(args: list[str], arm: str) -> Iterator[Any]:
    log = cache_folder() / "bench" / f"{arm.replace(', ', '-')}.log"
    with running(
        [*args, "--skip-server-warmup", "--sleep-on-idle"], log, {VARIABLE: "1", "OMP_NUM_THREADS": "1"}
    ) as server:
        yield server
