"""A mixed load on one Scheduler; as a program it prints the batches that ran, for a comparison between processes.

``python -m tests.harness.workload POLICY``
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.harness import pool
from tests.harness.prompts import Tokens, interleaved
from tests.harness.scheduler import Harness

SETTINGS = {"chunked_prefill_size": 512, "max_running_requests": 24}


def run(harness: Harness) -> list[Any]:
    """Families and loners, arriving while others run, aborted now and then, some in a namespace of their own."""
    tokens = Tokens()
    prompts = [*interleaved(tokens.families(5, 6, 192, 40)), tokens.take(900), tokens.take(40), tokens.take(1300)]
    for i, prompt in enumerate(prompts):
        harness.send(prompt, new=4 + i % 13, cache_salt="salt" if i % 7 == 0 else None)
        if i % 3 == 0:
            harness.step()
        if i % 11 == 10:
            harness.abort(f"r{i - 2}")
    log = harness.run()
    return [list(map(_plain, batch)) for batch in log.shape()]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


if __name__ == "__main__":
    harness = pool.start(schedule_policy=sys.argv[1], **SETTINGS)
    print(json.dumps({"adapter": "feather" in harness.scheduler.__dict__, "batches": run(harness)}))
    pool.discard()
