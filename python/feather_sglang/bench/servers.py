"""The servers of ``feather bench serve``: fresh ones, one an arm, or the one that a user has."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from feather_sglang.bench import arms, counters
from feather_sglang.bench.machine import cores
from feather_sglang.bench.measure import QUESTION, ask, running
from feather_sglang.bench.target import Target
from feather_sglang.cli.arguments import Arguments
from feather_sglang.cli.launch import attention_on_cpu, serve_on_cpu
from feather_sglang.cli.model import cache_folder
from feather_sglang.cli.remote import Remote
from feather_sglang.sglang.phases import VARIABLE

CHUNKED_PREFILL = "8192"
"""Tokens of one prefill pass at most: SGLang's own default where a GPU has 80 GB or more, on every machine."""

_POOL = 65_536
"""KV tokens on the CPU at most, some 3 GB of the embedded model."""


class Servers(Protocol):
    """Where arms are measured."""

    def serving(self, name: str, arm: arms.Arm) -> Any:
        """A context with the server of an arm: a ``Target``, and the seconds it took to start (None: it ran)."""
        ...

    def log(self, name: str) -> Path | None:
        """Where the server of an arm writes; None: only its user knows."""
        ...


@dataclass(frozen=True)
class Fresh:
    """A server for each arm, ended with its context."""

    args: list[str]
    env: Mapping[str, str]
    attention: str | None
    """The attention backend on the CPU, where neither user nor arm names one; None: this is not the CPU, or they do."""

    @classmethod
    def of(cls, arguments: Arguments, tokens: int) -> Fresh:
        """Servers with the user's arguments, and the defaults of benches where the user gives none.

        :param tokens: KV tokens that are wanted at once; on the CPU, the pool is made for them as far as memory goes.
        :raises UsageError: if this machine cannot serve.
        """
        defaults: dict[str, str | None] = {"chunked-prefill-size": CHUNKED_PREFILL}
        if not serve_on_cpu(arguments.device):
            return cls(arguments.with_defaults(defaults), {}, None)
        attention = attention_on_cpu(arguments)
        # torch_native's bfloat16 attention takes up to eight times as long; and the KV pool is to bind nobody.
        defaults |= {"dtype": "float32", "max-total-tokens": str(min(tokens + 1024, _POOL))}
        defaults["attention-backend"] = attention
        # More than one thread halves the time of a prefill, as long as idle threads sleep: by default they spin, and on
        # a busy machine every step would then wait for a thread that is not running.
        env = {"OMP_NUM_THREADS": str(min(cores(), 8)), "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
        named = "attention-backend" in arguments.given
        return cls(arguments.with_defaults(defaults), env, None if named else attention)

    @contextmanager
    def serving(self, name: str, arm: arms.Arm) -> Iterator[tuple[Target, float | None]]:
        """:raises ServerFailed: if it does not start."""
        args = [*self.args, *arm.args, *counters.SERVER_ARGS, "--skip-server-warmup", "--sleep-on-idle"]
        print(f"{name}: starting a server ...", flush=True)
        began = time.perf_counter()
        with running(args, self.log(name), {**self.env, **dict(arm.env), VARIABLE: "1"}) as server:
            seconds = time.perf_counter() - began
            target = Target(server.url, server.pid)
            print(f"{name}: ready after {seconds:.0f} s. {QUESTION} {ask(target)}", flush=True)
            yield target, seconds

    def log(self, name: str) -> Path:
        """In the user's cache folder."""
        return cache_folder() / "bench" / f"{name}.log"


@dataclass(frozen=True)
class Running:
    """A server that runs already, and goes on afterwards."""

    target: Target
    arm: str
    """What it is, by the names of the arms."""
    model: str
    tokenizer: str
    context: int | None
    words: str

    @classmethod
    def at(cls, url: str, api_key: str | None, *, flushes: bool) -> Running:
        """:raises UsageError: if no SGLang answers there."""
        info = Remote(url, api_key, timeout=60, option="--base-url").server_info()
        state = info["internal_states"][0].get("feather") or {}
        policy = state.get("policy", info.get("schedule_policy", "unknown policy"))
        target = Target(url, flushes=flushes, api_key=api_key)
        counts = bool(info.get("enable_metrics")) and info.get("decode_log_interval") == 1
        return cls(
            target=replace(target, counts=counts),
            arm=arms.name_of(policy, state.get("order"), state.get("gate")),
            model=str(info.get("served_model_name") or info["model_path"]),
            tokenizer=str(info.get("tokenizer_path") or info["model_path"]),
            context=info.get("context_length"),
            words=", ".join([policy, *(f"{name} {state[name]}" for name in ("order", "gate") if name in state)]),
        )

    @contextmanager
    def serving(self, name: str, arm: arms.Arm) -> Iterator[tuple[Target, float | None]]:
        """It stays as it is."""
        if not self.target.counts:
            print("it does not count every step: steps and batches are told with", *counters.SERVER_ARGS, flush=True)
        yield self.target, None

    def log(self, name: str) -> None:
        """Not ours."""
