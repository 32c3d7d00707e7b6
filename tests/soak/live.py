"""``python -m tests.soak.live --minutes 10``: a server under clients that abort and hang up; nothing is left of them.

At the end every gauge is at zero, and the resident memory of the scheduler's process has settled: its median over the
last fifth of the time is at most 1.02 times that of the fourth and fifth tenth. Of ten minutes: the last two against
the fourth and fifth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

from feather_sglang.bench.tiny_llama import write_model
from feather_sglang.cli import server
from tests.soak.clients import Clients

GROWTH = 1.02
CLIENTS = 24
SAMPLE = 1.0
"""Seconds between two looks at the process."""
SETTLE = 60.0
"""Seconds in which the last requests end."""
GAUGES = (
    *(f"sglang:feather_{name}" for name in ("waiting", "running", "held", "total_kv_tokens", "distinct_kv_tokens")),
    *("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_used_tokens"),
)


class Found(NamedTuple):
    counts: dict[str, int]
    wrong: list[str]
    left: dict[str, float]
    """Gauges that are not at zero."""
    early: float
    """Bytes of resident memory, median."""
    late: float

    @property
    def problems(self) -> list[str]:
        growth = self.late / self.early
        return [
            *self.wrong[:5],
            *(f"{name} is {value:g}" for name, value in self.left.items()),
            *([f"resident memory grew {growth:.3f} times"] if growth > GROWTH else []),
        ]


def run(minutes: float, seed: int, folder: Path) -> Found:
    """Serve for so long."""
    args = ["--model-path", str(write_model(folder / "model")), "--load-format", "dummy", "--skip-tokenizer-init"]
    args += ["--device", "cpu", "--attention-backend", "feather-cascade", "--disable-cuda-graph", "--enable-metrics"]
    args += ["--max-total-tokens", "12000", "--max-running-requests", "12", "--chunked-prefill-size", "1024"]
    args += ["--schedule-policy", "feather", "--feather-gate", "ucb", "--feather-park", "pressure"]
    args += ["--feather-log", str(folder / "decisions"), "--log-level", "warning"]
    with server.running(args, log=folder / "log", env={"SGLANG_PLATFORM": "feather_cpu"}) as running:
        scheduler = _scheduler_of(running.pid)
        clients = Clients(running.url, CLIENTS, seed)
        clients.start()
        samples, began = [], time.monotonic()
        try:
            while (at := (time.monotonic() - began) / (60 * minutes)) < 1:
                samples.append((at, scheduler.memory_info().rss))
                time.sleep(SAMPLE)
        finally:
            clients.stop()
        end = time.monotonic() + SETTLE
        while (left := _gauges(running.url)) and time.monotonic() < end:
            time.sleep(0.5)
    early = statistics.median(rss for at, rss in samples if 0.3 <= at < 0.5)
    late = statistics.median(rss for at, rss in samples if at >= 0.8)
    return Found(dict(sorted(clients.counts.items())), clients.wrong, left, early, late)


def _scheduler_of(pid: int) -> psutil.Process:
    children = psutil.Process(pid).children(recursive=True)
    return next(child for child in children if any("scheduler" in part for part in child.cmdline()[:1]))


def _gauges(url: str) -> dict[str, float]:
    """Those that are not at zero; a gauge of a scheduler that is idle is written by what asks for its state."""
    _get(f"{url}/server_info")
    text = _get(f"{url}/metrics")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    names = {sample.name for sample in samples}
    values = {sample.name: sample.value for sample in samples if sample.name in GAUGES}
    state: dict[str, Any] = json.loads(_get(f"{url}/server_info"))["internal_states"][0]["feather"]
    values |= {f"{name} of /server_info": state[name] for name in ("waiting", "running", "held", "total_kv")}
    values |= {f"{name} of parking": state["parking"][name] for name in ("parked", "parked_now_tokens")}
    values |= {f"{name}, which is missing": 1 for name in GAUGES if name not in names}
    return {name: float(value) for name, value in values.items() if value}


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.live", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="feather-live-") as folder:
        found = run(options.minutes, options.seed, Path(folder))
        if found.problems:
            print((Path(folder) / "log").read_text(errors="replace")[-4_000:], file=sys.stderr)
    counts = ", ".join(f"{count} {name}" for name, count in found.counts.items())
    print(f"{options.minutes:g} minutes, {sum(found.counts.values())} requests ({counts})")
    print(f"resident memory {found.early / 2**20:.1f} -> {found.late / 2**20:.1f} MiB: {found.late / found.early:.4f}")
    print("\n".join(found.problems) or "all gauges at zero")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
