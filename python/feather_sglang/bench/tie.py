"""``feather bench tie``: the simulator against SGLang's real Scheduler, in this process, on the CPU.

Counts must agree within 2%, the ratio of throughput between policies within 15%, as the median of alternating pairs.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from feather_sglang.bench import results
from feather_sglang.bench.machine import in_words, machine, versions
from feather_sglang.bench.outputs import Outputs
from feather_sglang.bench.simulate import profile_of
from feather_sglang.bench.tie_loads import LOADS
from feather_sglang.bench.tie_runs import Counted, live, simulated, start
from feather_sglang.cli import model

SCHEMA = {"name": "feather bench tie", "version": 1}
POLICIES = ("fcfs", "feather")
COUNTS, RATIOS = 0.02, 0.15
"""How far the simulator may be off."""


def main(argv: list[str]) -> int:
    """Run, print, write what was asked for; 1 if the simulator is further off than it may be."""
    options = _parser().parse_args(argv)
    outputs = Outputs.of(options)
    profile = profile_of(options.profile)
    circumstances = results.Circumstances(
        command=shlex.join(["feather", "bench", "tie", *argv]),
        machine=machine(),
        versions=versions(),
        workload="; ".join(f"{name}: {load.__doc__}" for name, load in LOADS.items()),
    )
    print(f"{in_words(circumstances)}; {model.NAME}; {profile.said()}\n", flush=True)
    began = time.perf_counter()
    scheduler = start(model.embedded_model(say=print))
    live(scheduler, "fcfs", LOADS["strangers"]()[:4])  # what is set up once
    rows = []
    for name, make in LOADS.items():
        runs: dict[str, list[Counted]] = {policy: [] for policy in POLICIES}
        for pair in range(options.pairs):
            for policy in POLICIES if pair % 2 == 0 else POLICIES[::-1]:
                runs[policy].append(live(scheduler, policy, make()))
        rows += row(name, runs, {policy: simulated(policy, make(), profile) for policy in POLICIES})
        print(render(rows[-2:]), flush=True)
    report = {"schema": SCHEMA, **asdict(circumstances), "profile": profile.name, "rows": rows}
    if outputs.json is not None:
        results.write(report, outputs.json)
    good = all(line["within"] for line in rows)
    print(f"\n{'within' if good else 'NOT within'} {COUNTS:.0%} (counts) and {RATIOS:.0%} (ratio to fcfs, CPU time)")
    print(f"{time.perf_counter() - began:.0f} s{outputs.said()}")
    return int(not good)


def row(name: str, runs: Mapping[str, Sequence[Counted]], modelled: Mapping[str, Counted]) -> list[dict[str, Any]]:
    """A line for each policy.

    :param runs: by policy, those of each pair.
    """
    base = runs[POLICIES[0]]
    lines = []
    for policy in POLICIES:
        real, model = runs[policy], modelled[policy]
        pairs = [one.seconds / other.seconds for one, other in zip(base, real, strict=True)]
        ratio, predicted = statistics.median(pairs), modelled[POLICIES[0]].seconds / model.seconds
        counts = {"steps": model.steps / real[0].steps, "computed": model.computed / real[0].computed}
        lines.append(
            {
                "load": name,
                "policy": policy,
                "steps": {"live": real[0].steps, "simulated": model.steps},
                "computed": {"live": real[0].computed, "simulated": model.computed},
                "ratio_to_fcfs": {"live": ratio, "low": min(pairs), "high": max(pairs), "simulated": predicted},
                "cpu_seconds": [one.seconds for one in real],
                "within": all(abs(off - 1) <= COUNTS for off in counts.values())
                and len({(one.steps, one.computed) for one in real}) == 1
                and abs(predicted / ratio - 1) <= RATIOS,
            }
        )
    return lines


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """Live and simulated, side by side."""
    lines = []
    for line in rows:
        steps, computed, ratio = line["steps"], line["computed"], line["ratio_to_fcfs"]
        lines.append(
            f"{line['load']:<14} {line['policy']:<8} steps {steps['live']} / {steps['simulated']}, computed "
            f"{computed['live']:,} / {computed['simulated']:,}, ratio to fcfs {ratio['live']:.2f} "
            f"({ratio['low']:.2f}-{ratio['high']:.2f}) / {ratio['simulated']:.2f}{'' if line['within'] else '  OFF'}"
        )
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather bench tie",
        allow_abbrev=False,
        description="Compare the simulator with SGLang's real Scheduler and the embedded model, in this process: "
        "forward steps, computed prompt tokens, and the ratio of throughput between policies, live / simulated.",
    )
    parser.add_argument(
        "--pairs", type=int, default=3, metavar="N", help="runs of each policy, alternating (default: 3)"
    )
    parser.add_argument("--profile", default="cpu", metavar="NAME", help="as of feather simulate (default: cpu)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results for programs")
    parser.set_defaults(svg=None, png=None)
    return parser
