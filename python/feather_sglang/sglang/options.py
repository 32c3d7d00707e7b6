"""The plugin's options: where they come from, and whether they are good.

Command line > YAML (SGLang's ``--config``, which it merges into the command line) > environment > default. ``Engine``
takes no unknown arguments: there it is the environment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from feather_sglang.core.settings import BATCHING, DECODES, GATES, LENGTHS, ORDERS, Settings, default_chunk_size

POLICY = "feather"
"""The choice of ``--schedule-policy``."""

TOKENS_PER_SECOND = 10_000
"""What a second of ``--feather-max-wait`` is taken for, in scheduled tokens, until the leader rank has measured it."""

OUTPUT_TOKENS = "feather_output_tokens"
"""Where a client says how long the output will be: a key of SGLang's ``custom_params``."""

_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(Settings)}

DISABLE = "FEATHER_DISABLE"
"""The variable that keeps the choice ``feather`` valid and serves first come, first served."""


class OptionError(ValueError):
    """A bad option. The message is one line: what it is, what was expected, what to do."""


class Flag(NamedTuple):
    """One option, on the command line, in YAML and in the environment."""

    name: str
    read: Callable[[str], Any]
    expects: str
    """What a value is, for messages and ``--help``."""
    default: Any
    help: str

    @property
    def option(self) -> str:
        return "--feather-" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "FEATHER_" + self.name.upper()


_OF_YAML = {"true": "on", "false": "off"}
"""What YAML takes ``on`` and ``off`` for, as SGLang hands it on."""


def one_of(*choices: str) -> Callable[[str], str]:
    """Reads one of these."""

    def read(text: str) -> str:
        text = _OF_YAML.get(text, text)
        if text not in choices:
            raise ValueError(text)
        return text

    return read


FLAGS: tuple[Flag, ...] = (
    Flag(
        "order",
        one_of(*ORDERS),
        f"{{{','.join(ORDERS)}}}",
        _DEFAULTS["order"],
        "Which request comes next. held: the oldest, unless running rows hold much more of another; missing: the one "
        "that adds the fewest tokens to the batch, aged by --feather-aging.",
    ),
    Flag(
        "gate",
        one_of(*GATES, *BATCHING),
        f"{{{','.join((*GATES, *BATCHING))}}}",
        _DEFAULTS["gate"],
        "When to stop filling the batch before it is full. For batch jobs, offline: a batch is admitted when the last "
        "one has ended; refill: when --feather-refill-rows rows are free.",
    ),
    Flag(
        "refill_rows",
        int,
        "REQUESTS",
        _DEFAULTS["refill_rows"],
        "With --feather-gate refill: rows that must be free before requests are admitted.",
    ),
    Flag(
        "lanes",
        int,
        "LANES",
        _DEFAULTS["lanes"],
        "Bins of predicted output length, of equal mass, the shortest served first; 1: none.",
    ),
    Flag(
        "length",
        one_of(*LENGTHS),
        f"{{{','.join(LENGTHS)}}}",
        _DEFAULTS["length"],
        "With --feather-lanes: what predicts an output's length. request: the client, as "
        f"custom_params.{OUTPUT_TOKENS}; family: the outputs of requests with the same prefix; max-tokens: its limit.",
    ),
    Flag(
        "chunk_size",
        int,
        "TOKENS",
        None,
        "Granularity of the prefix index, a multiple of the page size. Default: the smallest that is at least 64.",
    ),
    Flag(
        "aging",
        float,
        "RATE",
        _DEFAULTS["aging"],
        "With --feather-order missing: tokens that one scheduled token of age is worth.",
    ),
    Flag(
        "barrier",
        one_of("on", "off"),
        "{on,off}",
        "on",
        "If requests wait for a prefix that is being computed; off only to measure what that brings.",
    ),
    Flag(
        "barrier_min",
        int,
        "TOKENS",
        _DEFAULTS["barrier_min"],
        "Prompt tokens that waiting for a prefix which is being computed must save.",
    ),
    Flag(
        "max_wait",
        float,
        "SECONDS",
        _DEFAULTS["max_wait_tokens"] / TOKENS_PER_SECOND,
        "How long others may be admitted before a request that fits. Counted in scheduled tokens, at the pace that the "
        "leader rank measures.",
    ),
    Flag(
        "log",
        Path,
        "FILE",
        None,
        "Write each decision to this file, as JSON lines, without prompts. At 64 MiB it becomes FILE.1.",
    ),
    Flag(
        "record",
        Path,
        "FILE",
        None,
        "Record what reaches the scheduler core, without prompts, for feather simulate and feather calibrate; "
        "256 MiB at most.",
    ),
    Flag(
        "state",
        Path,
        "FILE",
        None,
        "Keep what the gate learns in this file, and go on from it.",
    ),
    Flag(
        "state_every",
        float,
        "SECONDS",
        300.0,
        "Time between two saves of --feather-state; it is saved at the end, too.",
    ),
    Flag(
        "row_order",
        one_of("on", "off"),
        "{on,off}",
        "on",
        "Keep the rows of a decode batch sorted by family, so that a shared prefix is read by neighbours.",
    ),
    Flag(
        "sharing",
        one_of("on", "off", "auto"),
        "{on,off,auto}",
        "auto",
        "With --attention-backend feather-cascade, under any policy: if rows that share a prefix read it together; "
        "auto: where that saves more than it costs.",
    ),
    Flag(
        "decode",
        one_of(*DECODES),
        f"{{{','.join(DECODES)}}}",
        _DEFAULTS["decode"],
        "Which rows decode. aligned: those of similar KV length, where the longest row of a batch is found to matter; "
        "families: one prefix family after the other, for measuring.",
    ),
    Flag(
        "align_rows",
        int,
        "REQUESTS",
        _DEFAULTS["align_rows"],
        "With --feather-decode aligned: requests of a batch, at least.",
    ),
    Flag(
        "align_share",
        float,
        "SHARE",
        _DEFAULTS["align_share"],
        "With --feather-decode aligned: share of the KV pool that a batch may hold.",
    ),
    Flag(
        "park",
        one_of("off", "pressure"),
        "{off,pressure}",
        "off",
        "pressure: when the KV pool is full, copy what is a running request's own to host memory and go on with it "
        "later, instead of computing it again.",
    ),
    Flag(
        "park_host_tokens",
        int,
        "TOKENS",
        None,
        "With --feather-park: host memory, in KV tokens. Default: 65536, or the size of the KV pool if that is less.",
    ),
    Flag(
        "park_rows",
        int,
        "REQUESTS",
        None,
        "With --feather-park: requests that may be parked at a time. Default: as many as fit.",
    ),
    Flag(
        "on_mismatch",
        one_of("refuse", "fcfs"),
        "{refuse,fcfs}",
        "refuse",
        "What to do with an SGLang that the plugin does not know or cannot hook: end with a message, or serve first "
        "come, first served.",
    ),
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one server; without a chunk size, the page size decides."""

    order: str
    gate: str
    refill_rows: int
    lanes: int
    length: str
    chunk_size: int | None
    aging: float
    barrier: str
    barrier_min: int
    max_wait: float
    log: Path | None
    record: Path | None
    state: Path | None
    state_every: float
    row_order: str
    sharing: str
    decode: str
    align_rows: int
    align_share: float
    park: str
    park_host_tokens: int | None
    park_rows: int | None
    on_mismatch: str


def read_options(flags: Mapping[str, str], environment: Mapping[str, str]) -> Options:
    """The options, each from the first place that names it.

    :param flags: what the command line and its YAML gave, by name.
    :raises OptionError: if a value cannot be read.
    """
    values: dict[str, Any] = {}
    for flag in FLAGS:
        source, text = flag.option, flags.get(flag.name)
        if text is None:
            source, text = flag.variable, environment.get(flag.variable) or None
        if text is None:
            values[flag.name] = flag.default
            continue
        values[flag.name] = read(flag, source, text)
    return Options(**values)


def read(flag: Flag, source: str, text: str) -> Any:
    """The value of one option.

    :param source: what names it, for the message.
    :raises OptionError: if it cannot be read.
    """
    try:
        return flag.read(text)
    except ValueError:
        raise OptionError(f"{source} is {text!r}; expected {_expected(flag)}. Give one, or leave it out.") from None


def _expected(flag: Flag) -> str:
    kind = {int: "a whole number of", float: "a number, in"}.get(flag.read)  # type: ignore[call-overload]
    return f"{kind} {flag.expects.lower()}" if kind else f"one of {flag.expects.strip('{}').replace(',', ', ')}"


def is_disabled(environment: Mapping[str, str]) -> bool:
    """Whether ``FEATHER_DISABLE`` is set, to anything but 0 or false."""
    return environment.get(DISABLE, "").strip().lower() not in ("", "0", "false")


def chunk_size_of(options: Options, page_size: int) -> int:
    """Tokens of an index chunk: as asked for, or the smallest multiple of the page size that is at least 64.

    :raises OptionError: if what was asked for is not a positive multiple of the page size: only whole pages are
        shared, so a chunk must end where a page does.
    """
    if options.chunk_size is None:
        return default_chunk_size(page_size)
    if options.chunk_size <= 0 or options.chunk_size % page_size:
        raise OptionError(
            f"--feather-chunk-size is {options.chunk_size}; expected a positive multiple of the page size "
            f"({page_size}). Try {max(1, round(options.chunk_size / page_size)) * page_size}, or leave it out."
        )
    return options.chunk_size


def settings_of(options: Options, *, page_size: int, kv_capacity: int, hash_key: tuple[int, int]) -> Settings:
    """The core's settings.

    :param page_size: tokens of a page of the KV pool.
    :param kv_capacity: tokens of the KV pool.
    :raises OptionError: if the core refuses a value.
    """
    check_max_wait("--feather-max-wait", options.max_wait)
    chunk_size = chunk_size_of(options, page_size)
    with _named("--feather-"):
        return Settings(
            order=options.order,
            gate=options.gate,
            refill_rows=options.refill_rows,
            lanes=options.lanes,
            length=options.length,
            chunk_size=chunk_size,
            page_size=page_size,
            barrier=options.barrier == "on",
            barrier_min=options.barrier_min,
            max_wait_tokens=int(options.max_wait * TOKENS_PER_SECOND),
            kv_capacity=kv_capacity,
            hash_key=hash_key,
            aging=options.aging,
            decode=options.decode,
            align_rows=options.align_rows,
            align_share=options.align_share,
        )


def check_max_wait(name: str, seconds: float) -> None:
    """:raises OptionError: if it is no bound on waiting."""
    if not 0 <= seconds < math.inf:
        raise OptionError(f"{name} is {seconds}; expected a number of seconds, at least 0.")


def replaced(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings with other values for some fields.

    :raises OptionError: if the core refuses one.
    """
    with _named(""):
        return replace(settings, **values)


@contextmanager
def _named(prefix: str) -> Iterator[None]:
    """What the core refuses, in the words of an option: its message begins with the name of the field."""
    try:
        yield
    except ValueError as error:
        field, _, rest = str(error).partition(" ")
        name = prefix + field.replace("_", "-") if prefix else field
        raise OptionError(f"{name} {rest}") from None
