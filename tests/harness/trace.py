"""One trace through real Schedulers, as JSON: what ran, in which batches, and what came out.

``python -m tests.harness.trace`` in an environment whose SGLang is stock (the plugin hooks it) or patched (it calls the
policy itself): both must print the same, but for what is hooked and for penalties.
"""

from __future__ import annotations

import json
import random
from typing import Any

from sglang.srt.sampling.sampling_params import SamplingParams

from tests.harness import pool
from tests.harness.parking import park_at_random
from tests.harness.prompts import Tokens, interleaved
from tests.harness.scheduler import Harness

AT_RANDOM = "rows that are parked for no reason"
SETTINGS: dict[str, dict[str, Any]] = {
    "overlap": {},
    "no overlap, pages of 16": {"overlap": False, "page_size": 16},
    "chunks, mixed": {"chunked_prefill_size": 128, "enable_mixed_chunk": True, "max_running_requests": 12},
    "a pool that is too small": {"max_total_tokens": 1500, "max_running_requests": 16},
    AT_RANDOM: {"options": {"park": "pressure"}, "enable_mixed_chunk": True, "chunked_prefill_size": 128},
    "rows that sit out": {"options": {"decode": "families"}, "enable_mixed_chunk": True, "chunked_prefill_size": 128},
}


def run(harness: Harness) -> dict[str, Any]:
    """Arrivals in waves, with aborts, a pause that takes everything back, a change and a flush between them."""
    random_ = random.Random(7)
    outputs: dict[str, Any] = {}
    tokens = Tokens()
    for wave in range(3):
        prompts = interleaved(tokens.families(5, 4, 96, 24))
        for prompt in prompts:
            rid = harness.send(prompt, new=random_.randint(1, 12))
            outputs[rid] = harness.scheduler.waiting_queue[-1]
            if random_.random() < 0.5:
                harness.step()
            if random_.random() < 0.1:
                harness.abort(random_.choice(list(outputs)))
        if wave == 1:
            harness.pause("retract")
            harness.resume()
        harness.run()
        if wave == 1:
            assert harness.flush()
    state = harness.state()["feather"]
    return {
        "batches": harness.log.shape(),
        "outputs": {rid: list(req.output_ids) for rid, req in outputs.items()},
        "state": {key: state[key] for key in ("policy", "admitted", "barrier_waits", "waiting", "running", "failures")},
        "retracted": sum(req.retraction_count for req in outputs.values()),
        "parking": state["parking"],
    }


def penalized(harness: Harness, *, staggered: bool) -> list[list[int]]:
    """Outputs of requests with a frequency penalty, arriving one a step or all at once."""
    tokens = Tokens()
    harness.fresh()
    requests = []
    for _ in range(8):
        sampling = SamplingParams(max_new_tokens=12, temperature=0, ignore_eos=True, frequency_penalty=1.5)
        sampling.normalize(None)
        harness.send(tokens.take(40), sampling_params=sampling)
        requests.append(harness.scheduler.waiting_queue[-1])
        if staggered:
            harness.step()
    harness.run()
    return [list(req.output_ids) for req in requests]


def main() -> None:
    from feather_sglang.sglang import compat
    from feather_sglang.sglang.parking import support
    from feather_sglang.sglang.plugin import scheduler_hooks

    traces: dict[str, Any] = {}
    penalties: list[Any] = []
    for name, settings in SETTINGS.items():
        if not support.is_supported() and settings.keys() & {"page_size", "options"}:
            continue  # before 0.5.22: pages of one token on the CPU, and every row decodes
        harness = Harness(pool.MODEL, **settings)
        if name == AT_RANDOM:
            park_at_random(harness, seed=3)
        traces[name] = run(harness)
        if not penalties:
            penalties = [penalized(harness, staggered=staggered) for staggered in (True, False)]
        harness.close()
    hooked = [hook.target for hook in scheduler_hooks() if compat.is_in_place(hook)]
    report = {"patched": compat.is_patched(), "hooked": hooked, "penalties": penalties, "traces": traces}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
