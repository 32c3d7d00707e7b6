"""One episode: a script, run on SGLang's Scheduler with true overlap or without it, and checked after every pass.

Nothing in it reads a clock. The leader's ticks, by which gates learn and the bound on waiting follows the pace, are
given one that is drawn, so an episode is the same each time.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import sglang.srt.managers.scheduler as scheduler_module
from sglang.srt.managers import io_struct
from sglang.srt.sampling.sampling_params import SamplingParams

from feather_sglang.sglang.arguments import resolved_of
from feather_sglang.sglang.changes import SWITCHED_OFF, to_wire
from feather_sglang.sglang.options import OUTPUT_TOKENS
from feather_sglang.sglang.parking import start as parking
from feather_sglang.sglang.ticks import Ticks
from tests.harness import pool
from tests.harness.adapters import adapter_settings
from tests.harness.ends import Ends
from tests.harness.parking import park_at_random
from tests.harness.scheduler import Harness, environment
from tests.soak import script as a
from tests.soak.checks import STILL, Baseline, check_states
from tests.soak.states import running_of, those

PASSES = 20_000
"""More than any episode needs: beyond it, somebody waits for ever."""


class Episode:
    """:raises AssertionError: from ``run``, or whatever broke, on any violation."""

    def __init__(self, script: a.Script) -> None:
        self.script = script
        self.counts: Counter[str] = Counter()
        self.harness = harness = _start(script)
        scheduler = harness.scheduler
        self._seconds = random.Random(script.seed)
        self._now = 0.0
        self._sent: list[str] = []
        self._retractions: dict[str, int] = {}
        self._still = 0
        self._strangers: set[str] = set()
        """Rows that were admitted while the policy was switched off."""
        scheduler.feather_ticks = Ticks(scheduler.feather, clock=lambda: self._now)
        if script.parking is not None:
            self._park(**script.parking)
        self.ends = Ends(scheduler)
        self._lora = [ref.lora_id for ref in resolved_of(harness.server_args).lora_paths or ()]
        self._baseline = Baseline(harness)

    def _park(self, *, at_random: bool, host_tokens: int, most: int | None) -> None:
        if at_random:
            park_at_random(self.harness, self.script.seed, host_tokens)
        else:
            parking.attach(self.harness.scheduler, self.harness.scheduler.feather, host_tokens=host_tokens, most=most)

    def run(self) -> Counter[str]:
        """Returns what happened, by name."""
        try:
            for action in self.script.actions:
                getattr(self, f"_{type(action).__name__.lower()}")(action)
            self._end()
        finally:
            scheduler_module.TEST_RETRACT = False
            self.harness.scheduler.max_queued_requests = None
            self.harness.resume()
        self._count()
        return self.counts

    def _count(self) -> None:
        scheduler, state = self.harness.scheduler, self.harness.state()["feather"]
        self.counts.update(f"ended ({kind})" for kind in self.ends.kinds.values())
        self.counts.update({name: state[name] for name in ("admitted", "barrier_waits", "stops")})
        if "feather_rows" in scheduler.__dict__:
            names = ("partial_steps", "parks", "resumes", "ended_parked", "released")
            self.counts.update({name: state["parking"][name] for name in names})

    def _end(self) -> None:
        scheduler_module.TEST_RETRACT = False
        self.harness.resume()
        if self._off:
            self._change(a.Change({"policy": "feather"}))
        while not self.harness.is_idle():
            self._pass()
            assert self.counts["passes"] < PASSES, f"they wait: {[req.rid for req in self.harness.queue[:5]]}"
        self._pass()  # an idle loop goes on turning, and its next pass finds gone what ended in the last
        adapter = self.harness.scheduler.feather
        assert (adapter.failures, adapter.fallen) == (0, None), "the core failed"
        assert not +adapter.watch.fallbacks, adapter.watch.fallbacks
        assert self.ends.count == Counter(self._sent)
        self._baseline.check(self.harness)
        self.counts["episodes"] += 1

    @property
    def _off(self) -> bool:
        """Whether the policy is switched off."""
        return bool(self.harness.scheduler.feather.fallen == SWITCHED_OFF)

    # --- actions -------------------------------------------------------------------------------------------------

    def _send(self, action: a.Send) -> None:
        said = None if action.said is None else {OUTPUT_TOKENS: action.said}
        params = SamplingParams(
            max_new_tokens=action.new, temperature=0, ignore_eos=action.ignore_eos, custom_params=said
        )
        params.normalize(None)
        fields = dict(action.fields)
        if (adapter := fields.get("lora_id")) is not None:
            fields["lora_id"] = self._lora[adapter]
        rid = f"q{action.number:06d}"  # all of one length: an abort is for every id that begins alike
        self._sent.append(rid)
        self.harness.send(self.script.tokens(action.number), rid=rid, sampling_params=params, **fields)
        self.counts["sent"] += 1

    def _abort(self, action: a.Abort) -> None:
        found = those(self.harness.scheduler, action.state)
        if found:
            self.harness.abort(found[action.pick % len(found)].rid)
            self.counts[f"aborts ({action.state})"] += 1
            self._check()

    def _abortall(self, action: a.AbortAll) -> None:
        self.harness.abort(everything=True)
        self.counts["aborts of all"] += 1
        self._check()

    def _timeout(self, action: a.Timeout) -> None:
        scheduler = self.harness.scheduler
        if action.waiting:
            variable, reqs, field = "WAITING", scheduler.waiting_queue[:], "wait_queue_entry_time"
        else:
            variable, reqs, field = "RUNNING", running_of(scheduler), "forward_entry_time"
        for req in reqs[: action.oldest]:
            setattr(req.time_stats, field, 1e-3)
        with environment(**{f"SGLANG_REQ_{variable}_TIMEOUT": str(time.perf_counter() - 1.0)}):
            scheduler.ingest_requests()
        self.counts[f"timeouts ({variable.lower()})"] += len(reqs[: action.oldest])
        self._check()

    def _pause(self, action: a.Pause) -> None:
        self.harness.pause(action.mode)
        self.counts[f"pauses ({action.mode})"] += 1
        self._check()

    def _resume(self, action: a.Resume) -> None:
        self.harness.resume()

    def _flush(self, action: a.Flush) -> None:
        self.counts["flushes" if self.harness.flush() else "flushes refused"] += 1
        self._check()

    def _forceretraction(self, action: a.ForceRetraction) -> None:
        scheduler_module.TEST_RETRACT = action.on

    def _queuelimit(self, action: a.QueueLimit) -> None:
        self.harness.scheduler.max_queued_requests = action.requests

    def _change(self, action: a.Change) -> None:
        off, on = self._off, action.values.get("policy") == "feather"
        request = io_struct.SetInternalStateReq(server_args=to_wire(action.values))
        assert self.harness.scheduler.set_internal_state(request).updated is (on or not off)
        if off and on:
            self._strangers = {req.rid for req in running_of(self.harness.scheduler)}
            self.counts["switched on"] += 1
        self.counts["changes"] += 1
        self._check()

    def _passes(self, action: a.Passes) -> None:
        for _ in range(action.count):
            self._pass()

    # --- passes --------------------------------------------------------------------------------------------------

    def _pass(self) -> None:
        """A turn of SGLang's loop."""
        scheduler = self.harness.scheduler
        self._now += self._seconds.choice([0.001, 0.02, 0.1])
        scheduler.ingest_requests()
        self.counts["passes"] += 1
        if scheduler._engine_paused:
            return
        idle = not running_of(scheduler) and bool(scheduler.waiting_queue)
        batch = self.harness.step()
        self.counts["batches"] += batch is not None
        self.counts["batches while off"] += batch is not None and self._off
        for req in scheduler.waiting_queue[:]:
            self.counts["retractions"] += max(0, req.retraction_count - self._retractions.get(req.rid, 0))
            self._retractions[req.rid] = req.retraction_count
        self._still = self._still + 1 if idle and batch is None else 0
        assert self._still <= STILL, "an idle engine, somebody waits, and nobody is admitted"
        self._check()

    def _check(self) -> None:
        self._strangers.difference_update(req.rid for req in self.harness.scheduler.waiting_queue)
        check_states(self.harness, self.ends, self._sent, self._strangers)


def _start(script: a.Script) -> Harness:
    folder = pool.FOLDER / "adapters"
    lora: dict[str, Any] = adapter_settings(folder, script.adapters, most=2) if script.adapters else {}
    harness = pool.start(**script.engine, **lora)
    harness.reconfigure("feather", **script.core)
    return harness
