"""``feather bench tie``: the simulator against SGLang's real Scheduler, in this process, on the CPU.

Counts must agree within 2%, the ratio of throughput between policies within 15%, as the median of alternating pairs.
Beside it stands the negative control, live: on requests that share next to nothing, Feather may run no step and compute
no token more than first come, first served.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from feather_sglang.bench.machine import here, in_words
from feather_sglang.bench.outputs import Outputs, add_options
from feather_sglang.bench.simulate import profile_of
from feather_sglang.bench.tie_loads import CONTROL, LOADS
from feather_sglang.bench.tie_picture import draw
from feather_sglang.bench.tie_report import COUNTS, POLICIES, RATIO, lines, render, unharmed
from feather_sglang.bench.tie_runs import Counted, live, simulated, start
from feather_sglang.cli import model

SCHEMA = {"name": "feather bench tie", "version": 1}
CONTROL_PAIRS = 5


def main(argv: list[str]) -> int:
    """Run, print, write what was asked for; 1 if the simulator is further off than it may be, or the control fails."""
    options = _parser().parse_args(argv)
    outputs = Outputs.of(options)
    profile = profile_of(options.profile)
    loads = {name: make() for name, make in LOADS.items()}
    circumstances = here(["bench", "tie", *argv], "; ".join(f"{name}: {load.__doc__}" for name, load in LOADS.items()))
    where = f"{in_words(circumstances)}; {model.NAME}, one thread; simulated with {profile.said()}"
    print(f"{where}\n", flush=True)
    began = time.perf_counter()
    scheduler = start(model.embedded_model(say=print))
    live(scheduler, "fcfs", loads["strangers"][:4])  # what is set up once
    rows = []
    for name, load in loads.items():
        runs: dict[str, list[Counted]] = {policy: [] for policy in POLICIES}
        for pair in range(max(options.pairs, CONTROL_PAIRS) if name == CONTROL else options.pairs):
            for policy in POLICIES if pair % 2 == 0 else POLICIES[::-1]:
                runs[policy].append(live(scheduler, policy, load))
        rows += lines(name, runs, {policy: simulated(policy, load, profile) for policy in POLICIES})
        print(render(rows[-len(POLICIES) :]), flush=True)
    tied, control = all(row["within"] is not False for row in rows), unharmed(rows)
    report = {
        "schema": SCHEMA,
        **asdict(circumstances),
        "simulated_with": profile.said(),
        "pairs": options.pairs,
        "tied": tied,
        "negative_control": control,
        "rows": rows,
    }
    outputs.write(report, draw, subtitle=where)
    print(
        f"\nsimulator: {'' if tied else 'NOT '}within {COUNTS:.0%} (counts) and {RATIO:.0%} (ratio to {POLICIES[0]})\n"
        f"negative control ({CONTROL}), live: steps and computed tokens of {POLICIES[1]} are "
        f"{'at most' if control else 'MORE than'} those of {POLICIES[0]}; the ratio is shown, not judged"
    )
    print(f"{time.perf_counter() - began:.0f} s{outputs.said()}")
    return int(not (tied and control))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather bench tie",
        allow_abbrev=False,
        description="Compare the simulator with SGLang's real Scheduler and the embedded model, in this process: "
        "forward steps, computed prompt tokens, and the ratio of throughput between policies, live / simulated.",
    )
    parser.add_argument(
        "--pairs",
        type=int,
        default=3,
        metavar="N",
        help=f"runs of each policy, alternating (default: %(default)s; the negative control: {CONTROL_PAIRS})",
    )
    parser.add_argument("--profile", default="cpu", metavar="NAME", help="as of feather simulate (default: cpu)")
    add_options(parser)
    return parser
