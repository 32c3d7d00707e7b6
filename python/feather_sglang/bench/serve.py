"""``feather bench serve``: real servers on one workload or several, one arm after the other."""

from __future__ import annotations

import argparse
import functools
import sys
import time
from dataclasses import dataclass
from typing import Any

from feather_sglang.bench import arms, results, serve_options
from feather_sglang.bench.machine import here, in_words
from feather_sglang.bench.models import ModelTokenizer, context_of
from feather_sglang.bench.outputs import Outputs
from feather_sglang.bench.picture import draw
from feather_sglang.bench.report import report
from feather_sglang.bench.rounds import Ended, Rounds
from feather_sglang.bench.servers import Fresh, Running
from feather_sglang.bench.table import render
from feather_sglang.bench.workloads import Workload
from feather_sglang.cli import model
from feather_sglang.cli.arguments import Arguments
from feather_sglang.cli.errors import UsageError

_NOTES_ON_CPU = {
    "torch_native": "On this CPU, SGLang's attention (torch_native) works on a cached prefix as if it were new: times "
    "understate what reuse saves.",
    "feather-cascade": "Attention, where an arm names no other: feather-cascade. It takes a cached prefix as computed, "
    "and reads once what rows share.",
}


def main(argv: list[str]) -> int:
    """Run the arms, print a table, write what was asked for; 0, 1 if an arm failed, 130 if interrupted.

    What was measured before a failure or an interruption is kept, and marked as incomplete.

    :raises UsageError: before anything is started.
    """
    options, server_args = serve_options.parser().parse_known_args(argv)
    if options.quick:
        options.arms, options.per_family = "fcfs,feather", 4
    serve_options.check(options)
    outputs = Outputs.of(options)
    began = time.perf_counter()
    plan = _on_running_server(options, server_args) if options.base_url else _on_fresh_servers(options, server_args)
    circumstances = here(_shown(["bench", "serve", *argv]), "; ".join(map(str, plan.workloads)))
    where = f"{in_words(circumstances)}; {plan.model}"
    asked = "\n".join(map(str, plan.workloads))
    print(f"{asked}\n{where}\n", flush=True)
    if circumstances.machine["load"] > 0.5 * circumstances.machine["cores"]:
        print("the machine is busy: its tokens and steps can be relied on, its times cannot\n", flush=True)

    describe = functools.partial(report, circumstances=circumstances, workloads=[each.name for each in plan.workloads])

    def keep(runs: list[results.Run]) -> None:
        if outputs.json is not None:
            results.write(describe(runs, complete=False), outputs.json)

    ended = plan.rounds.run(options.repeats, keep)
    if not ended.runs:
        return ended.status
    result = describe(ended.runs, complete=ended.stopped is None, stopped=ended.stopped)
    _print(result, ended, plan.note)
    subtitle = asked if len(plan.workloads) == 1 else f"{len(plan.workloads)} workloads, each on every arm"
    outputs.write(result, draw, subtitle=f"{subtitle}\n{where}", note=plan.note)
    print(f"{time.perf_counter() - began:.0f} s{outputs.said()}")
    return ended.status


@dataclass(frozen=True)
class _Plan:
    """What will be run."""

    rounds: Rounds
    workloads: list[Workload]
    model: str
    note: str | None


def _on_fresh_servers(options: argparse.Namespace, server_args: list[str]) -> _Plan:
    chosen = arms.chosen(options.arms)
    arguments = Arguments.read(server_args)
    arguments.check_model()
    path = arguments.model_path or str(model.embedded_model(say=print))
    trusted = "trust-remote-code" in arguments.given
    context = arguments.context_length or context_of(path, trusted=trusted)
    workloads = serve_options.workloads(options, ModelTokenizer(path, trusted=trusted), context)
    servers = Fresh.of(arguments, max(workload.tokens for workload in workloads))
    note = None if servers.attention is None else _NOTES_ON_CPU[servers.attention]
    return _Plan(Rounds(servers, chosen, workloads, path), workloads, arguments.model_path or model.NAME, note)


def _on_running_server(options: argparse.Namespace, server_args: list[str]) -> _Plan:
    """:raises UsageError: if it does not answer, or arms were asked of it."""
    rest = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    rest.add_argument("--model-path", "--model")
    named, unknown = rest.parse_known_args(server_args)
    if unknown:
        raise UsageError(f"{unknown[0]} is an option of servers that are started, and --base-url names one that runs")
    running = Running.at(options.base_url.rstrip("/"), options.api_key, flushes=options.flush)
    path = named.model_path or running.tokenizer
    context = running.context or context_of(path)
    workloads = serve_options.workloads(options, ModelTokenizer(path), context)
    what = f"{running.model} at {running.target.url} ({running.words})"
    return _Plan(Rounds(running, {running.arm: arms.Arm(())}, workloads, path), workloads, what, None)


def _shown(words: list[str]) -> list[str]:
    """A command, without a key."""
    shown = ["--api-key=..." if word.startswith("--api-key=") else word for word in words]
    return ["..." if before == "--api-key" else word for before, word in zip(["", *words], shown, strict=False)]


def _print(result: dict[str, Any], ended: Ended, note: str | None) -> None:
    for cell in result.get("workloads", []):
        if cell["medians"]:
            print(f"\n{cell['name']}\n{render(cell)}")
    if result["medians"]:
        print("\nall together" if "workloads" in result else "", render(result), sep="\n")
    if note is not None:
        print(f"\n{note}")
    if ended.stopped is not None:
        print(f"feather: {ended.stopped}; what is above is complete", file=sys.stderr)
