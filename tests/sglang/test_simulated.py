"""The simulator against the real Scheduler, by exact counts; and traffic that shares nothing, live."""

from __future__ import annotations

from pathlib import Path

import pytest

from feather_sglang.bench.tie_loads import LOADS, Tokens
from feather_sglang.bench.tie_runs import KV_TOKENS, PREFILL, ROWS, live, simulated
from feather_sglang.simulate.profiles import PROFILES
from feather_sglang.simulate.traces import read

SAMPLE = Path(__file__).parents[2] / "bench" / "data" / "mooncake" / "conversation_head.jsonl"
MACHINE = {"max_running_requests": ROWS, "max_total_tokens": KV_TOKENS, "chunked_prefill_size": PREFILL}


@pytest.mark.slow
def test_the_simulator_counts_as_the_scheduler_does(start_alone, capsys):
    scheduler = start_alone(**MACHINE).scheduler
    off = []
    for name, load in LOADS.items():
        for policy in ("fcfs", "feather"):
            real, model = live(scheduler, policy, load()), simulated(policy, load(), PROFILES["cpu"])
            said = f"{name} {policy}: live {real[:2]}, simulated {model[:2]} (steps, computed)"
            with capsys.disabled():
                print(f"\n{said}", end="")
            if any(abs(modelled / counted - 1) > 0.02 for counted, modelled in zip(real[:2], model[:2], strict=True)):
                off.append(said)
    assert off == []


@pytest.mark.slow
def test_negative_control_live(start_alone):
    """64 of Mooncake's conversations, scaled to 1,000 tokens: no step and no token more than fcfs."""
    jobs = read(SAMPLE, 64).jobs
    longest = max(job.length for job in jobs)
    block, tokens, blocks = 512 * 1000 // longest, Tokens(), {}
    load = []
    for job in jobs:
        prompt = [t for level in job.levels for t in blocks.setdefault(level, tokens.take(block))]
        prompt += tokens.take(max(1, job.length * 1000 // longest - len(prompt)))
        load.append((prompt, max(1, job.output // 32)))
    assert max(len(prompt) for prompt, _ in load) <= 1000
    scheduler = start_alone(**MACHINE).scheduler
    fcfs, feather = (live(scheduler, policy, load) for policy in ("fcfs", "feather"))
    assert feather.steps <= fcfs.steps
    assert feather.computed <= fcfs.computed
