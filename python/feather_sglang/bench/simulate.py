"""``feather simulate``: what each policy would make of recorded traffic, on modelled step times."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from feather_sglang.bench import simulate_bins
from feather_sglang.bench.machine import here, in_words
from feather_sglang.bench.outputs import Outputs, add_options
from feather_sglang.bench.simulate_picture import draw
from feather_sglang.bench.simulate_report import render, report
from feather_sglang.cli.errors import UsageError
from feather_sglang.core.settings import MOST_LANES
from feather_sglang.simulate import calibrate
from feather_sglang.simulate.profiles import DEFAULT, PROFILES, Profile
from feather_sglang.simulate.replay import replay
from feather_sglang.simulate.run import BASELINE, Outcome, run, saturating_speed
from feather_sglang.simulate.traces import TraceError, TraceFile, read
from feather_sglang.simulate.upstream import POLICIES

NAMES = (*POLICIES, "feather")


def main(argv: list[str]) -> int:
    """Run the policies, print a table, write what was asked for.

    :raises UsageError: before anything is run.
    """
    options = _parser().parse_args(argv)
    outputs = Outputs.of(options)
    try:
        if options.replay:
            return _replay(options.trace)
        if options.bins is not None:
            return _bins(options, outputs, argv)
        return _simulate(options, outputs, argv)
    except TraceError as error:
        raise UsageError(str(error)) from None


def _simulate(options: argparse.Namespace, outputs: Outputs, argv: list[str]) -> int:
    profile = profile_of(options.profile)
    trace = read(options.trace, options.limit)
    trace.check(profile.context, profile.kv_tokens, f"profile {profile.name}")
    began = time.perf_counter()
    speed = float(options.speed or saturating_speed(trace, profile))
    jobs = trace.at_speed(speed)
    circumstances = here(["simulate", *argv], _in_words(trace, speed))
    print(f"{circumstances.workload}\n{profile.said()}")
    for constant in profile.constants:
        print(f"  {constant.name} {constant.value:.4g} {constant.unit}".rstrip() + f" ({constant.origin})")
    print(f"on {in_words(circumstances)}\n", flush=True)
    outcomes: list[Outcome] = []
    for policy in options.policies:
        with tqdm(total=len(jobs), desc=policy, leave=False, disable=None) as bar:
            outcomes.append(run(policy, jobs, profile, trace.level_tokens, _to(bar), **_lanes(policy, options)))
    result = report(outcomes, profile, speed, trace.level_tokens, circumstances)
    print(render(result))
    outputs.write(result, draw, subtitle=f"{circumstances.workload}\nmodelled: {profile.said()}")
    requests, wall = len(jobs) * len(outcomes), sum(outcome.wall_seconds for outcome in outcomes)
    print(
        f"\nmodelled, not measured; {requests:,} requests simulated in {wall:.0f} s: {requests / wall:,.0f} requests, "
        f"{result['decisions_per_second']:,.0f} decisions a second\n{time.perf_counter() - began:.0f} s{outputs.said()}"
    )
    return 0


def _lanes(policy: str, options: argparse.Namespace) -> dict[str, Any]:
    """What ``feather`` is given of its lanes."""
    if policy != "feather" or options.lanes == 1:
        return {}
    given = {"lanes": options.lanes, "length": "family"}
    return given | ({"length": "request", "expected": attrgetter("output")} if options.length == "oracle" else {})


def _bins(options: argparse.Namespace, outputs: Outputs, argv: list[str]) -> int:
    """Static batches, in theory and through the core."""
    if outputs.pictures:
        raise UsageError("--bins draws no picture; `feather bench length` does: leave out --svg and --png")
    began = time.perf_counter()
    rows = simulate_bins.measure(options.trace, options.bins, options.batch, options.limit)
    print(simulate_bins.render(rows, options.batch))
    circumstances = here(["simulate", *argv], f"static batches of {options.batch}, outputs of {options.trace}")
    outputs.write(simulate_bins.report(rows, options.batch, circumstances), draw)
    print(f"\nmodelled, not measured; {time.perf_counter() - began:.0f} s{outputs.said()}")
    return 0


def _replay(path: Path) -> int:
    """Make a recording's decisions again; 1 if one differs."""
    began = time.perf_counter()
    found = replay(path)
    print(
        f"{path.name}: {found.passes:,} passes, {found.plans:,} plans, {found.admitted:,} admissions replayed in "
        f"{time.perf_counter() - began:.1f} s"
    )
    for difference in found.differences:
        print(f"  {difference}")
    print("the decisions differ" if found.differences else "every decision is as it was recorded")
    return int(bool(found.differences))


def _to(bar: tqdm) -> Callable[[int], None]:
    def told(finished: int) -> None:
        bar.update(finished - bar.n)

    return told


def _in_words(trace: TraceFile, speed: float) -> str:
    jobs = trace.jobs
    span = jobs[-1].arrival / speed
    notes = "".join(f"; {note}" for note in trace.notes)
    return (
        f"{trace.path.name} ({trace.format}): {len(jobs):,} requests in {span:,.0f} s (speed {speed:g}), "
        f"{sum(job.length for job in jobs) / len(jobs):,.0f} tokens in and "
        f"{sum(job.output for job in jobs) / len(jobs):,.0f} out on average{notes}"
    )


def profile_of(name: str) -> Profile:
    """One of ``PROFILES``, or what ``feather calibrate`` wrote to a file."""
    if name in PROFILES:
        return PROFILES[name]
    if not Path(name).is_file():
        raise UsageError(
            f"--profile: there is no profile {name!r}; expected one of {', '.join(PROFILES)}, or a file of feather "
            "calibrate"
        )
    return calibrate.read(Path(name))


def _policies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in NAMES:
            raise UsageError(f"--policies: there is no policy {name!r}; expected some of {', '.join(NAMES)}")
    if len(set(names)) < len(names):
        raise UsageError(f"--policies: name each policy once, not {text}")
    return names


def _speed(text: str) -> float | None:
    """None: whatever saturates."""
    if text == "saturate":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise UsageError(f"--speed: {text!r} is no speed; expected a number above 0, or saturate")
    return speed


def _whole(option: str) -> Callable[[str], int]:
    def read_whole(text: str) -> int:
        if not text.isdecimal() or int(text) < 1:
            raise UsageError(f"{option}: {text!r}; expected a whole number of at least 1")
        return int(text)

    return read_whole


def _bin_counts(text: str) -> list[int]:
    return [_lane_count("--bins")(part.strip()) for part in text.split(",")]


def _lane_count(option: str) -> Callable[[str], int]:
    def read_count(text: str) -> int:
        count = _whole(option)(text)
        if count > MOST_LANES:
            raise UsageError(f"{option}: {count}; expected at most {MOST_LANES}")
        return count

    return read_count


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather simulate",
        allow_abbrev=False,
        description="Replay recorded traffic through the scheduler core that serves and through SGLang's own "
        "policies, on modelled step times.",
    )
    parser.add_argument(
        "trace",
        type=Path,
        metavar="TRACE",
        help="a Mooncake trace, bench_serving output, a log of OpenAI-style requests, or a recording",
    )
    parser.add_argument(
        "--policies",
        type=_policies,
        default=[BASELINE, "feather"],
        metavar="A,B",
        help=f"some of {', '.join(NAMES)} (default: {BASELINE},feather)",
    )
    parser.add_argument(
        "--profile",
        default=DEFAULT,
        metavar="NAME",
        help=f"one of {', '.join(PROFILES)}, or a file of feather calibrate (default: %(default)s)",
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="X",
        help="arrivals so many times as fast; saturate: the smallest power of two at which the queue of fcfs is never "
        "empty from 5%% of the trace to its last arrival (default: 1)",
    )
    parser.add_argument("--limit", type=_whole("--limit"), metavar="N", help="the first so many requests only")
    parser.add_argument(
        "--bins",
        type=_bin_counts,
        metavar="K,K",
        help="instead: requests a step of static batches from so many bins of known output length, in theory and "
        "through the core; outputs are those of TRACE, or of uniform:LOW,HIGH",
    )
    parser.add_argument(
        "--batch", type=_whole("--batch"), default=16, metavar="B", help="with --bins: requests a batch (default: 16)"
    )
    parser.add_argument(
        "--lanes",
        type=_lane_count("--lanes"),
        default=1,
        metavar="K",
        help="of feather: bins of output length, the shortest served first (default: 1, none)",
    )
    parser.add_argument(
        "--length",
        choices=("oracle", "family"),
        default="family",
        help="with --lanes: outputs are known, or predicted by those of the same prefix (default: %(default)s)",
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="of a recording: make its decisions again instead, one by one, and compare them",
    )
    add_options(parser)
    return parser
