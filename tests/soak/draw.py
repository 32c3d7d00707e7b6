"""Scripts at random: settings, loads and disturbances, each drawn from one number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from feather_sglang.core.settings import BATCHING, DECODES, GATES, LENGTHS, ORDERS
from tests.soak.script import (
    Abort,
    AbortAll,
    Action,
    Change,
    Flush,
    ForceRetraction,
    Passes,
    Pause,
    Prompt,
    QueueLimit,
    Resume,
    Script,
    Send,
    Timeout,
)
from tests.soak.states import STATES


def draw(seed: int, requests: int) -> Script:
    """The script of an episode of so many requests."""
    rng = random.Random(seed)
    script = _settings(rng, seed)
    script.actions = list(_Load(rng, script, requests))
    return script


def _settings(rng: random.Random, seed: int) -> Script:
    page = rng.choice([1, 1, 16])
    pool = rng.choice([1_500, 4_000, 12_000, 24_000])
    adapters = rng.choice([0, 0, 0, 3])
    engine: dict[str, Any] = {
        "overlap": rng.random() < 0.7,
        "page_size": page,
        "attention_backend": rng.choice(["feather-cascade", "feather-cascade", "torch_native"]),
        "chunked_prefill_size": rng.choice([256, 1024, 4096, 8192]),
        "enable_mixed_chunk": rng.random() < 0.3,
        "max_total_tokens": pool,
        "max_running_requests": rng.choice([2, 8, 32]),
        "schedule_conservativeness": rng.choice([0.1, 1.0]),
    }
    if engine["attention_backend"] == "torch_native":
        engine["chunked_prefill_size"] = max(1024, engine["chunked_prefill_size"])  # it computes anew what it has
    decode = rng.choice([*DECODES, "all", "all"])
    parking = None
    if decode != "all" or rng.random() < 0.5:
        parking = {
            "host_tokens": rng.choice([0, 1_000, 20_000] if decode != "all" else [1_000, 20_000]),
            "most": rng.choice([None, None, 2]),
            "at_random": rng.random() < 0.3,
        }
    core: dict[str, Any] = {
        "order": rng.choice(ORDERS),
        "gate": rng.choice(["never", *GATES, *BATCHING]),
        "gate_seed": seed % 1_000,
        "chunk_size": page * rng.choice([1, 4, 8]) if page > 1 else rng.choice([1, 16, 64, 100]),
        "barrier": rng.random() < 0.9,
        "barrier_min": rng.choice([0, 64, 256]),
        "max_wait_tokens": rng.choice([0, 2_000, 50_000, 10**9]),
        "aging": rng.choice([0.0, 0.05, 0.2]),
        "lanes": rng.choice([1, 1, 4]),
        "length": rng.choice(LENGTHS),
        "refill_rows": rng.choice([1, 4]),
        "decode": decode,
        "align_rows": rng.choice([2, 6]),
    }
    if core["chunk_size"] == 1 and pool > 12_000:
        core["chunk_size"] = 16  # a node a token: the check of an index of that size takes long
    return Script(seed, engine, core, parking, adapters)


class _Load:
    """Arrivals and disturbances, in the order in which they happen."""

    def __init__(self, rng: random.Random, script: Script, requests: int) -> None:
        self.rng = rng
        self.script = script
        self.requests = requests
        self.namespaces = rng.choice([1, 1, 3])
        self.rate = rng.choice([0.1, 0.5, 2.0])
        self.longest = min(8_000, script.engine["max_total_tokens"] * 6 // 10)
        self.paused = False
        self.switches = rng.random() < 0.5
        """Whether the policy is switched off now and then."""
        self.off = False

    def __iter__(self) -> Iterator[Action]:
        rng, sent = self.rng, 0
        if rng.random() < 0.3:
            yield QueueLimit(rng.choice([4, 12]))
        while sent < self.requests:
            for _ in range(min(self._arrivals(), self.requests - sent)):
                yield self._send(sent)
                sent += 1
            yield from self._disturb()
            yield Passes(1)

    def _arrivals(self) -> int:
        if self.rng.random() < 0.02:
            return self.rng.randint(5, 20)
        return sum(self.rng.random() < self.rate / 4 for _ in range(4))

    def _send(self, number: int) -> Send:
        rng = self.rng
        self.script.prompts[number] = self._prompt(number)
        fields: dict[str, Any] = {}
        if self.namespaces > 1:
            fields = {"cache_salt": rng.choice([None, "", "a"]), "extra_key": rng.choice([None, "", "b"])}
        if self.script.adapters:
            fields["lora_id"] = rng.choice([None, *range(self.script.adapters)])
        said = rng.choice([None, None, 4, 30, -1, "many"])
        if rng.random() < 0.05:
            fields |= {"return_logprob": True, "logprob_start_len": rng.choice([-1, 0, 100])}
        return Send(number, rng.choice([1, 2, 8, 32, 32]), rng.random() < 0.3, said, fields)

    def _prompt(self, number: int) -> Prompt:
        """Log-uniform lengths, 1 to 4k tokens, and now and then up to 8k; often the beginning of one seen before."""
        rng = self.rng
        low, high = (12, 13) if rng.random() < 0.02 else (0, 12)
        length = min(int(2 ** rng.uniform(low, high)), self.longest)
        if rng.random() < 0.01:
            length = self.script.engine["max_total_tokens"] + 100  # larger than the pool: it gets an error
        if number == 0 or rng.random() < 0.2:
            return Prompt(None, 0, length)
        base = rng.randrange(max(0, number - 40), number)
        whole = self.script.prompts[base].kept + self.script.prompts[base].own
        kept = min(length, rng.choice([whole, rng.randint(0, whole)]))
        return Prompt(base, kept, length - kept)

    def _disturb(self) -> Iterator[Action]:
        rng = self.rng
        if rng.random() < 0.15:
            yield Abort(rng.choice(STATES), rng.randrange(100))
        if self.switches and rng.random() < (0.1 if self.off else 0.02):
            self.off = not self.off
            yield Change((self._change() if rng.random() < 0.3 else {}) | {"policy": "fcfs" if self.off else "feather"})
        if self.paused:
            if rng.random() < 0.3:
                yield Flush()
            if rng.random() < 0.5:
                self.paused = False
                yield Resume()
            return
        what = rng.random()
        if what < 0.01:
            self.paused = True
            yield Pause(rng.choice(["retract", "in_place"]))
        elif what < 0.03:
            yield ForceRetraction(rng.random() < 0.5)
        elif what < 0.031:
            yield AbortAll()
        elif what < 0.036:
            yield Timeout(rng.random() < 0.7, rng.randint(1, 8))
        elif what < 0.04:
            yield QueueLimit(rng.choice([None, 4, 12]))
        elif what < 0.05:
            yield Change(self._change())
        elif what < 0.055:
            yield Flush()

    def _change(self) -> dict[str, str]:
        rng = self.rng
        every = {
            "gate": rng.choice([*GATES, *BATCHING]),
            "order": rng.choice(ORDERS),
            "aging": rng.choice(["0", "0.05", "0.2"]),
            "barrier_min": rng.choice(["0", "64", "256"]),
            "max_wait": rng.choice(["0", "0.2", "60"]),
        }
        return {name: every[name] for name in rng.sample(sorted(every), rng.randint(1, 3))}
