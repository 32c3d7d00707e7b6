"""One trace through real Schedulers, as JSON: what ran, in which batches, and what came out.

``python -m tests.harness.trace`` in an environment whose SGLang is stock (the plugin hooks it) or patched (it calls the
policy itself): both must print the same, but for ``patched``.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.harness.prompts import Tokens, interleaved
from tests.harness.scheduler import Harness

SETTINGS: dict[str, dict[str, Any]] = {
    "overlap": {},
    "no overlap, pages of 16": {"overlap": False, "page_size": 16},
    "chunks, mixed": {"chunked_prefill_size": 128, "enable_mixed_chunk": True, "max_running_requests": 12},
    "a pool that is too small": {"max_total_tokens": 1500, "max_running_requests": 16},
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
    }


def main() -> None:
    from feather_sglang.sglang import compat
    from feather_sglang.sglang.plugin import scheduler_hooks

    model = Path(tempfile.gettempdir()) / "feather-tiny-llama"
    traces = {}
    for name, settings in SETTINGS.items():
        harness = Harness(model, **settings)
        traces[name] = run(harness)
        harness.close()
    hooked = [hook.target for hook in scheduler_hooks() if compat.is_in_place(hook)]
    json.dump({"patched": compat.is_patched(), "hooked": hooked, "traces": traces}, sys.stdout)


if __name__ == "__main__":
    main()
