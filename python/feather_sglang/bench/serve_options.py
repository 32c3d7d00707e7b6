"""The options of ``feather bench serve``, and the workloads they ask for."""

from __future__ import annotations

import argparse
import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from feather_sglang.bench import arms
from feather_sglang.bench.outputs import add_options
from feather_sglang.bench.workloads import Tokenizer, Workload, gsm8k, shared_prefix, trace
from feather_sglang.bench.workloads.recorded import Wishes
from feather_sglang.cli.errors import UsageError
from feather_sglang.cli.remote import API_KEY, Parser

GENERATED = ("gsm8k", "generated-shared-prefix")


def parser() -> argparse.ArgumentParser:
    """Options that are not known go to the servers."""
    parser = Parser(
        prog="feather bench serve",
        allow_abbrev=False,
        description="Serve a workload by one arm after the other, each on a fresh server, and compare them. Other "
        "options go to every server, as to `feather serve` (--model-path MODEL, --tp 2 ...).",
        epilog="Where an option takes N[,N...], every combination is a workload of its own, on the same servers.",
    )
    parser.add_argument("--quick", action="store_true", help="two arms and half the requests of the default workload")
    group = parser.add_argument_group("what is compared")
    group.add_argument(
        "--arms",
        default="feather,fcfs,feather-static",
        help=f"some of {', '.join(arms.ARMS)}, or of the groups {', '.join(arms.GROUPS)}; ARM@BACKEND is an arm on "
        "another attention backend (default: %(default)s)",
    )
    group.add_argument("--repeats", type=int, default=1, metavar="N", help="rounds over all arms, in alternating order")
    group.add_argument("--base-url", metavar="URL", help="measure this running server, whatever it is, and no other")
    group.add_argument(
        "--api-key", default=os.environ.get(API_KEY), help=f"of --base-url, if it wants one (default: {API_KEY})"
    )
    group.add_argument(
        "--flush", action="store_true", help="with --base-url: drop its prefix cache before each run (ours: always)"
    )

    group = parser.add_argument_group("workloads")
    group.add_argument("--workload", choices=GENERATED, default=GENERATED[0], help="default: %(default)s")
    group.add_argument(
        "--data", type=Path, metavar="PATH", help=f"in place of --workload: {trace.KINDS}; it is told by its content"
    )
    group.add_argument(
        "--families", type=_several(int), default=[8], metavar="N[,N...]", help="that share a prefix (8)"
    )
    group.add_argument("--per-family", type=int, default=8, metavar="N", help="requests of each (8)")
    group.add_argument("--shots", type=int, default=8, metavar="N", help="gsm8k: examples in a prefix (8)")
    group.add_argument(
        "--worked", action="store_true", help="gsm8k: examples with their reasoning, three times as long"
    )
    group.add_argument(
        "--prefix",
        type=_several(int),
        default=[512],
        metavar="N[,N...]",
        help="generated: tokens that are shared (512)",
    )
    group.add_argument("--suffix", type=int, default=64, metavar="N", help="generated: a request's own tokens (64)")
    group.add_argument(
        "--output-tokens",
        type=_several(int),
        default=[None],
        metavar="N[,N...]",
        help="of each request (8; with --data: as recorded)",
    )
    group.add_argument("--requests", type=int, metavar="N", help="data: the first N only")
    group.add_argument("--interleaved", action="store_true", help="data: sessions in turn, one request of each")
    group.add_argument("--drop-longer", action="store_true", help="data: leave out what is longer than the context")
    group.add_argument(
        "--context",
        type=int,
        metavar="TOKENS",
        help="data: longest request; Mooncake is scaled to it (the context of the model, or of the server)",
    )

    group = parser.add_argument_group("arrivals (default: all at once)")
    group.add_argument("--rate", type=_several(float), metavar="R[,R...]", help="requests a second, Poisson")
    group.add_argument("--speed", type=float, metavar="X", help="data: as recorded, X times as fast")
    group.add_argument(
        "--concurrency", type=_several(int), metavar="N[,N...]", help="so many at a time, the next when one has ended"
    )
    add_options(parser)
    return parser


def check(options: argparse.Namespace) -> None:
    """:raises UsageError: for what cannot be, before anything is loaded."""
    paced = [name for name in ("rate", "speed", "concurrency") if getattr(options, name) is not None]
    if len(paced) > 1:
        raise UsageError(f"--{paced[0]} and --{paced[1]}: give one of them, arrivals are of one kind")
    for name in ("repeats", "per_family", "shots", "suffix", "requests", "context", "speed"):
        _positive(name, [getattr(options, name)])
    for name in ("families", "prefix", "output_tokens", "rate", "concurrency"):
        _positive(name, getattr(options, name) or [])
    if options.data is None:
        for name in ("speed", "requests", "interleaved", "drop_longer", "context"):
            if getattr(options, name):
                raise UsageError(f"--{name.replace('_', '-')} goes with --data PATH: leave it out, or give a recording")
    elif not options.data.exists():
        raise UsageError(f"--data {options.data} does not exist: expected {trace.KINDS}")


def _positive(name: str, values: list[float | None]) -> None:
    for value in values:
        if value is not None and not (0 < value < math.inf):
            raise UsageError(f"--{name.replace('_', '-')} {value:g}: give more than 0")


def workloads(options: argparse.Namespace, tokenizer: Tokenizer, context: int | None) -> list[Workload]:
    """Every combination that was asked for, each with a name of its own.

    :param context: tokens, prompt and output, that a request may have at most; None: nobody knows.
    :raises UsageError: if the data is not good, or a request is longer.
    """
    if options.context is not None and context is not None and options.context > context:
        raise UsageError(f"--context {options.context:,}: the context is {context:,} tokens; give that or less")
    found = [paced for workload in _unpaced(options, tokenizer, context) for paced in _paced(options, workload)]
    if len({workload.arrivals for workload in found}) > 1:
        found = [replace(workload, name=f"{workload.name}, {workload.arrivals}") for workload in found]
    if len(options.output_tokens) > 1:
        found = [replace(each, name=f"{each.name}, {each.requests[0].output_tokens} new") for each in found]
    return found


def _unpaced(options: argparse.Namespace, tokenizer: Tokenizer, context: int | None) -> Iterator[Workload]:
    if options.data is not None:
        limit = options.context or context
        if limit is None:
            raise UsageError("the configuration of the model does not tell its context: give --context TOKENS")
        for new in options.output_tokens:
            wishes = Wishes(
                context=limit,
                requests=options.requests,
                output_tokens=new,
                interleaved=options.interleaved,
                drop_longer=options.drop_longer,
                speed=options.speed,
            )
            yield trace.trace(options.data, tokenizer, wishes)
        return
    for families, prefix, new in itertools.product(options.families, options.prefix, options.output_tokens):
        sizes = {"families": families, "per_family": options.per_family, "output_tokens": new or 8}
        if options.workload == "gsm8k":
            if prefix == options.prefix[0]:
                few_shot = gsm8k.few_shot(tokenizer, shots=options.shots, worked=options.worked, **sizes)
                yield _fitting(few_shot, context, "--shots")
        else:
            generated = shared_prefix.shared_prefix(tokenizer, prefix=prefix, suffix=options.suffix, **sizes)
            yield _fitting(generated, context, "--prefix")


def _fitting(workload: Workload, context: int | None, option: str) -> Workload:
    """:raises UsageError: if a request is longer than the context."""
    longest = max(request.length for request in workload.requests)
    if context is not None and longest > context:
        raise UsageError(
            f"{workload.name}: a request has {longest:,} tokens and the context is {context:,}: lower {option} or "
            "--output-tokens, or name a model with a longer context (--model-path)"
        )
    return workload


def _paced(options: argparse.Namespace, workload: Workload) -> Iterator[Workload]:
    if options.rate is not None:
        yield from (workload.poisson(rate) for rate in options.rate)
    elif options.concurrency is not None:
        yield from (workload.closed_loop(concurrency) for concurrency in options.concurrency)
    else:
        yield workload


def _several(kind: type[int] | type[float]) -> Callable[[str], list[int] | list[float]]:
    def read(text: str) -> list[int] | list[float]:
        return [kind(word) for word in text.split(",")]

    read.__name__ = f"list of {'whole ' if kind is int else ''}numbers"
    return read
