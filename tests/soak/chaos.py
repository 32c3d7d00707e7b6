"""Episodes of chaos: one Scheduler of drawn settings each, driven by drawn arrivals and disturbances.

After every pass the adapter's book, the core, the index and the engine must agree (``tests.harness.mirror``). At the
end of an episode nobody is left waiting or running, the core never failed, and index and KV pool are back at their
baseline. Everything is drawn from one seed, so an episode is replayed by its number.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import sglang.srt.managers.scheduler as scheduler_module

from feather_sglang.bench.tiny_llama import VOCABULARY
from tests.harness import pool
from tests.harness.mirror import check_mirror
from tests.harness.scheduler import Harness

PASSES = 20_000
"""More than any episode needs: beyond it, somebody waits for ever."""


@dataclass(frozen=True)
class Setting:
    """What is drawn for an episode."""

    engine: dict[str, Any]
    core: dict[str, Any]
    queue_limit: int | None
    namespaces: int
    longest: int
    rate: float
    """Arrivals a pass, in the mean."""

    @staticmethod
    def draw(rng: random.Random) -> Setting:
        page = rng.choice([1, 1, 16])
        chunk = page * rng.choice([4, 8]) if page > 1 else rng.choice([16, 64, 100])
        pool_tokens = rng.choice([6_000, 12_000, 40_000])
        engine = {
            "overlap": rng.random() < 0.7,
            "page_size": page,
            "chunked_prefill_size": rng.choice([256, 1024, 4096]),
            "enable_mixed_chunk": rng.random() < 0.3,
            "max_total_tokens": pool_tokens,
            "max_running_requests": rng.choice([2, 8, 32]),
        }
        core = {
            "order": rng.choice(["held", "missing"]),
            "gate": rng.choice(["never", "never", "static", "offline", "refill"]),
            "lanes": rng.choice([1, 1, 3]),
            "length": rng.choice(["family", "max-tokens"]),
            "chunk_size": chunk,
            "page_size": page,
            "barrier_min": rng.choice([0, 64, 256]),
            "max_wait_tokens": rng.choice([2_000, 50_000, 10**9]),
            "aging": rng.choice([0.0, 0.05]),
        }
        return Setting(
            engine=engine,
            core=core,
            queue_limit=rng.choice([None, None, 12]),
            namespaces=rng.choice([1, 1, 3]),
            longest=min(4_000, pool_tokens // 3),
            rate=rng.choice([0.1, 0.5, 2.0]),
        )


class Episode:
    """One episode; ``run`` raises AssertionError (or whatever broke) on any violation."""

    def __init__(self, seed: int, requests: int) -> None:
        self.rng = random.Random(seed)
        self.setting = Setting.draw(self.rng)
        self.requests = requests
        self.prompts: list[list[int]] = []
        self.alive: set[str] = set()
        self.rejected: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.harness: Harness = pool.start(**self.setting.engine)
        self.harness.reconfigure("feather", **self.setting.core)
        scheduler = self.harness.scheduler
        scheduler.max_queued_requests = self.setting.queue_limit
        self.free = scheduler.token_to_kv_pool_allocator.available_size()

    def run(self) -> Counter[str]:
        """Returns what happened, by name."""
        sent = 0
        try:
            while sent < self.requests:
                for _ in range(self._arrivals()):
                    self._send(sent)
                    sent += 1
                self._disturb()
                self._step()
            scheduler_module.TEST_RETRACT = False
            while not self.harness.is_idle():
                self._step()
            self._end()
        finally:
            scheduler_module.TEST_RETRACT = False
            self.harness.scheduler.max_queued_requests = None
        return self.counts

    def _arrivals(self) -> int:
        if self.rng.random() < 0.02:
            return self.rng.randint(5, 20)
        return sum(self.rng.random() < self.setting.rate / 4 for _ in range(4))

    def _prompt(self) -> list[int]:
        """Often the beginning of one seen before, and tokens of its own; lengths log-uniform."""
        rng = self.rng
        length = int(2 ** rng.uniform(0, rng.choice([8, 11, 12])))
        kept: list[int] = []
        if self.prompts and rng.random() < 0.8:
            base = rng.choice(self.prompts[-40:])
            kept = base[: rng.choice([len(base), rng.randint(0, len(base))])]
        prompt = (kept + [rng.randrange(2, VOCABULARY) for _ in range(max(1, length // 4))])[: self.setting.longest]
        self.prompts.append(prompt)
        return prompt

    def _send(self, number: int) -> None:
        rng = self.rng
        fields: dict[str, Any] = {}
        if self.setting.namespaces > 1:
            fields["cache_salt"] = rng.choice([None, "", "a"])
        if rng.random() < 0.05:
            fields |= {"return_logprob": True, "logprob_start_len": 0}
        rid = self.harness.send(self._prompt(), rng.choice([1, 2, 8, 32]), rid=f"q{number:06d}", **fields)
        queued = {req.rid for req in self.harness.scheduler.waiting_queue}
        (self.alive if rid in queued else self.rejected).add(rid)
        self.counts["sent"] += 1

    def _disturb(self) -> None:
        rng, harness = self.rng, self.harness
        if self.alive and rng.random() < 0.05:
            harness.abort(rng.choice(sorted(self.alive)))
            self.counts["aborts"] += 1
        draw = rng.random()
        if draw < 0.01:
            mode = rng.choice(["retract", "in_place"])
            harness.pause(mode)
            self._step()
            if mode == "retract" and rng.random() < 0.5:
                harness.flush()
                self.counts["flushes"] += 1
            harness.resume()
            self.counts[f"pauses ({mode})"] += 1
        elif draw < 0.03:
            scheduler_module.TEST_RETRACT = not scheduler_module.TEST_RETRACT  # SGLang's own switch
        elif draw < 0.031:
            harness.abort(everything=True)
            self.counts["aborts of all"] += 1

    def _step(self) -> None:
        batch = self.harness.step()
        self.counts["passes"] += 1
        if batch is not None:
            self.counts["batches"] += 1
        check_mirror(self.harness)
        ended = self.alive & self.harness.log.finished.keys()
        self.alive -= ended
        waiting = {req.rid for req in self.harness.scheduler.waiting_queue}
        known = waiting | {tracked.req.rid for tracked in self.harness.scheduler.feather.book.running.values()}
        # A request that was aborted in the queue ends without ever being in a batch.
        self.alive &= known
        assert self.counts["passes"] < PASSES, f"not idle: {sorted(self.alive)[:5]} wait"

    def _end(self) -> None:
        harness = self.harness
        harness.step()  # an idle loop goes on turning, and its next pass finds gone what ended in the last
        state = harness.state()["feather"]
        assert harness.scheduler.feather.failures == 0, "the core failed and was rebuilt"
        assert (state["waiting"], state["running"], state["held"]) == (0, 0, 0), state
        assert harness.flush()
        assert harness.state()["feather"]["nodes"] == 1, "the index did not return to its baseline"
        assert harness.scheduler.token_to_kv_pool_allocator.available_size() == self.free, "KV leaked"
        check_mirror(harness)
        self.counts["episodes"] += 1
