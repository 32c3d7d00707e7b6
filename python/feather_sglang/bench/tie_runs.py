"""One load under one policy: on SGLang's Scheduler in this process, and in the simulator."""

from __future__ import annotations

import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from feather_sglang.bench.tie_loads import Load
from feather_sglang.simulate.engine import Machine
from feather_sglang.simulate.policies import make_engine
from feather_sglang.simulate.profiles import Profile
from feather_sglang.simulate.traces.openai import chained
from feather_sglang.simulate.workload import Job, Trace

ROWS, CHUNK, PREFILL, KV_TOKENS = 8, 64, 2048, 40_000
MACHINE = {"max_running_requests": ROWS, "max_total_tokens": KV_TOKENS, "chunked_prefill_size": PREFILL}
"""As SGLang's arguments."""
PASSES = 20_000


class Counted(NamedTuple):
    """What a run took."""

    steps: int
    """Forward passes."""
    computed: int
    """Prompt tokens."""
    tokens: int
    """Output tokens."""
    seconds: float
    """Of the process's CPU, or as modelled."""


def simulated(policy: str, load: Load, profile: Profile) -> Counted:
    """In the simulator, with the step times of ``profile``."""
    jobs = []
    for id, (prompt, new) in enumerate(load):
        pieces = [array("q", prompt[n : n + CHUNK]).tobytes() for n in range(0, len(prompt) - CHUNK + 1, CHUNK)]
        jobs.append(Job(id, 0.0, chained("", pieces), len(prompt), new))
    engine = make_engine(policy, Trace(jobs), profile.cost, Machine(ROWS, KV_TOKENS, PREFILL, CHUNK))
    passes = [done for done in engine.run() if done.kind != "idle"]
    return Counted(len(passes), sum(done.computed for done in passes), sum(new for _, new in load), engine.now)


def start(model: Path) -> Any:
    """SGLang's Scheduler on the CPU, with an attention that reads shared KV once.

    :param model: the folder of the model.
    """
    from feather_sglang.bench import engine

    settings = {
        "model_path": str(model),
        "load_format": "auto",
        "attention_backend": "feather-cascade",
        **MACHINE,
    }
    with tempfile.TemporaryDirectory() as folder:  # for a tiny model, of which nothing is used
        return engine.start(Path(folder), overlap=True, settings=settings)


def live(scheduler: Any, policy: str, load: Load) -> Counted:
    """On the Scheduler, from an empty cache."""
    from feather_sglang.bench import engine

    _take_policy(scheduler, policy)
    steps = computed = 0

    def chosen(batch: Any) -> None:
        nonlocal steps, computed
        if batch:
            steps += 1
            if batch.forward_mode.is_extend():
                computed += int(sum(batch.extend_lens))

    began = time.process_time()
    for n, (prompt, new) in enumerate(load):
        scheduler.process_input_requests([engine.tokenized(f"r{n}", prompt, new)])
    _run(scheduler, lambda: engine.step_overlap(scheduler, chosen))
    return Counted(steps, computed, sum(new for _, new in load), time.process_time() - began)


def _take_policy(scheduler: Any, policy: str) -> None:
    from sglang.srt.managers.schedule_policy import SchedulePolicy

    from feather_sglang.core.settings import Settings
    from feather_sglang.sglang.start import attach

    if not scheduler.flush_cache():
        raise RuntimeError("the cache could not be dropped between two runs")
    scheduler.__dict__.pop("feather", None)
    scheduler.waiting_queue = []
    scheduler.policy = SchedulePolicy(policy, scheduler.tree_cache, False, False, False)
    if policy == "feather":
        attach(scheduler, Settings(chunk_size=CHUNK, kv_capacity=KV_TOKENS, hash_key=(1, 2)))


def _run(scheduler: Any, step: Callable[[], None]) -> None:
    for _ in range(PASSES):
        step()
        if not scheduler.waiting_queue and scheduler.is_fully_idle():
            return
    raise RuntimeError(f"requests are left after {PASSES} passes")
