"""``feather bench serve``: real servers on one workload, one policy after the other."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from feather_sglang.bench import arms, results
from feather_sglang.bench.machine import in_words, machine, versions
from feather_sglang.bench.measure import ArmFailed, measure
from feather_sglang.bench.outputs import Outputs, add_options
from feather_sglang.bench.picture import draw
from feather_sglang.bench.table import render
from feather_sglang.bench.workload import Encode, Workload, few_shot
from feather_sglang.cli import model
from feather_sglang.cli.arguments import Arguments
from feather_sglang.cli.launch import attention_on_cpu, serve_on_cpu

CHUNKED_PREFILL = "8192"
"""Tokens of one prefill pass at most: SGLang's own default where a GPU has 80 GB or more, on every machine."""

_NOTES_ON_CPU = {
    "torch_native": "On this CPU, SGLang's attention (torch_native) works on a cached prefix as if it were new: times "
    "understate what reuse saves.",
    "feather-cascade": "Attention in every arm: feather-cascade, which takes a cached prefix as computed and reads it "
    "once for all rows that share it.",
}


def main(argv: list[str]) -> int:
    """Run the arms, print a table, write what was asked for; 0, 1 if an arm failed, 130 if interrupted.

    What was measured before a failure or an interruption is kept.

    :raises UsageError: before anything is started.
    """
    options, server_args = _parser().parse_known_args(argv)
    if options.quick:
        options.arms, options.per_family = "fcfs,feather", 4
    names = arms.chosen(options.arms)
    outputs = Outputs.of(options)
    arguments = Arguments.read(server_args)
    arguments.check()
    on_cpu = serve_on_cpu(arguments.device)
    workload = few_shot(
        _tokenizer(arguments.model_path or str(model.embedded_model(say=print))),
        families=options.families,
        per_family=options.per_family,
        shots=options.shots,
        worked=options.worked,
        output_tokens=options.output_tokens,
    )
    circumstances = results.Circumstances(
        command=shlex.join(["feather", "bench", "serve", *argv]),
        machine=machine(),
        versions=versions(),
        workload=str(workload),
    )
    where = f"{in_words(circumstances)}; {arguments.model_path or model.NAME}"
    print(f"{workload}\n{where}\n", flush=True)
    if circumstances.machine["load"] > 0.5 * circumstances.machine["cores"]:
        print("the machine is busy: its tokens and steps can be relied on, its times cannot\n", flush=True)

    began = time.perf_counter()
    attention = attention_on_cpu(arguments) if on_cpu else None
    server_args = arguments.with_defaults(_defaults(workload, attention))
    env = _environment(circumstances.machine["cores"]) if on_cpu else {}
    runs, status = _run(names, server_args, env, workload, lambda runs: _keep(runs, circumstances, outputs.json))
    if not runs:
        return status
    report = results.report(runs, circumstances)
    note = None if attention is None or "attention-backend" in arguments.given else _NOTES_ON_CPU[attention]
    print(f"\n{render(report)}\n" + (f"\n{note}" if note else ""))
    if outputs.pictures:
        draw(report, outputs.pictures, subtitle=f"{workload}\n{where}", note=note)
    print(f"{time.perf_counter() - began:.0f} s{outputs.said()}")
    return status


def _run(
    names: list[str],
    server_args: list[str],
    env: dict[str, str],
    workload: Workload,
    keep: Callable[[list[results.Run]], None],
) -> tuple[list[results.Run], int]:
    """The arms that could be measured, and the exit status; ``keep`` is called after each."""
    runs: list[results.Run] = []
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        for name in names:
            runs.append(measure(name, [*server_args, *arms.ARMS[name]], workload, env))
            keep(runs)
    except ArmFailed as failure:
        print(f"feather: error: {failure}", file=sys.stderr)
        return runs, 1
    except KeyboardInterrupt:
        print("\nfeather: interrupted; no server is left", file=sys.stderr)
        return runs, 130
    return runs, 0


def _keep(runs: list[results.Run], circumstances: results.Circumstances, path: Path | None) -> None:
    if path is not None:
        results.write(results.report(runs, circumstances), path)


def _defaults(workload: Workload, attention: str | None) -> dict[str, str | None]:
    """:param attention: the backend on the CPU; None: this is not the CPU."""
    defaults: dict[str, str | None] = {"chunked-prefill-size": CHUNKED_PREFILL}
    if attention is not None:
        # torch_native's bfloat16 attention takes up to eight times as long; and the KV pool is to bind nobody.
        defaults |= {"dtype": "float32", "max-total-tokens": str(workload.tokens + 1024)}
        defaults["attention-backend"] = attention
    return defaults


def _environment(cores: int) -> dict[str, str]:
    """More than one thread halves the time of a prefill, as long as idle threads sleep: by default they spin, and on a
    busy machine every step would then wait for a thread that is not running."""
    return {"OMP_NUM_THREADS": str(min(cores, 8)), "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather bench serve",
        allow_abbrev=False,
        description="Serve one workload by one policy after the other, each on a fresh server, and compare them. "
        "Other options go to every server, as to `feather serve` (--model-path MODEL, --tp 2 ...).",
        epilog="The default workload is GSM8K: questions, each after the examples of its family, interleaved.",
    )
    parser.add_argument("--quick", action="store_true", help="two arms and half the requests")
    parser.add_argument(
        "--arms", default="feather,fcfs,feather-static", help=f"some of {', '.join(arms.ARMS)} (default: %(default)s)"
    )
    parser.add_argument("--families", type=int, default=8, metavar="N", help="groups that share a prefix (default: 8)")
    parser.add_argument("--per-family", type=int, default=8, metavar="N", help="requests of each (default: 8)")
    parser.add_argument("--shots", type=int, default=8, metavar="N", help="examples in a prefix (default: 8)")
    parser.add_argument("--worked", action="store_true", help="examples with their reasoning: three times as long")
    parser.add_argument("--output-tokens", type=int, default=8, metavar="N", help="of each request (default: 8)")
    add_options(parser)
    return parser


def _tokenizer(model_path: str) -> Encode:
    from transformers import AutoTokenizer

    encode: Encode = AutoTokenizer.from_pretrained(model_path).encode
    return encode


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
