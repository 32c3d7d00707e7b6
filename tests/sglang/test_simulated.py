"""The simulator against the real Scheduler, by exact counts; and traffic that shares nothing, live."""

from __future__ import annotations

from array import array
from itertools import chain
from pathlib import Path

import pytest

from feather_sglang.simulate.cost import CPU
from feather_sglang.simulate.engine import Machine
from feather_sglang.simulate.policies import make_engine
from feather_sglang.simulate.traces import read
from feather_sglang.simulate.traces.openai import chained
from feather_sglang.simulate.workload import Job, Trace
from tests.harness.prompts import Tokens, interleaved

ROWS, CHUNK, PREFILL = 8, 64, 2048
ROOMY = 400_000
SAMPLE = Path(__file__).parents[2] / "bench" / "data" / "mooncake" / "conversation_head.jsonl"


def families():
    return [(prompt, 6 + 5 * (n % 4)) for n, prompt in enumerate(interleaved(Tokens().families(6, 5, 512, 40)))]


def nested():
    """Each turn of a conversation begins with the one before; four of them."""
    tokens = Tokens()
    prompts = []
    for _ in range(4):
        said: list[int] = []
        for _ in range(4):
            said = said + tokens.take(192)
            prompts.append([*said, *tokens.take(24)])
    return [(prompt, 4 + 3 * (n % 5)) for n, prompt in enumerate(prompts)]


def strangers():
    tokens = Tokens()
    return [(tokens.take(64 * (n % 9) + 70), 5 + n % 11) for n in range(32)]


def live(harness, policy, load, **settings):
    """(Forward steps, computed prompt tokens) on the real Scheduler, all requests at once."""
    harness.reconfigure(policy, chunked_prefill_size=settings.pop("prefill", PREFILL), **settings)
    for prompt, new in load:
        harness.send(prompt, new=new)
    log = harness.run()
    assert len(log.finished) == len(load)
    computed = sum(chain.from_iterable(batch.extends for batch in log.batches))
    return log.steps, computed


def simulated(policy, load):
    """The same in the simulator."""
    jobs = []
    for id, (prompt, new) in enumerate(load):
        pieces = [array("q", prompt[n : n + CHUNK]).tobytes() for n in range(0, len(prompt) - CHUNK + 1, CHUNK)]
        jobs.append(Job(id, 0.0, chained("", pieces), len(prompt), new))
    engine = make_engine(policy, Trace(jobs), CPU, Machine(ROWS, ROOMY, PREFILL, CHUNK))
    passes = list(engine.run())
    return sum(done.kind != "idle" for done in passes), sum(done.computed for done in passes)


@pytest.mark.slow
@pytest.mark.parametrize("load", [families, nested, strangers])
def test_the_simulator_counts_as_the_scheduler_does(start, load, capsys):
    harness = start(max_running_requests=ROWS, max_total_tokens=ROOMY)
    load = load()
    for policy in ("fcfs", "feather"):
        real, model = live(harness, policy, load), simulated(policy, load)
        with capsys.disabled():
            print(f"\n{policy}: live (steps, computed) {real}, simulated {model}", end="")
        for which, (counted, modelled) in enumerate(zip(real, model, strict=True)):
            assert abs(modelled / counted - 1) <= 0.02, (policy, ("steps", "computed")[which], real, model)


@pytest.mark.slow
def test_negative_control_live(start):
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
    harness = start(max_running_requests=ROWS, max_total_tokens=ROOMY)
    fcfs, feather = (live(harness, policy, load) for policy in ("fcfs", "feather"))
    assert feather[0] <= fcfs[0]
    assert feather[1] <= fcfs[1]
