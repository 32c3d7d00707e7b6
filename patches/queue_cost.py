"""What a prefill batch pays for a queue of 5,000 waiting requests: ``python patches/queue_cost.py [--sglang PATCHED]``.

On real Schedulers in processes of their own, without a GPU: the installed SGLang and, with ``--sglang``, a patched copy
(the folder that ``feather patch apply --sglang`` was given). The smallest of many CPU times, in microseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAITING, PROMPT, ADMITTED, RUNS = 5_000, 1_024, 8, 60


def measure() -> dict[str, float]:
    """Microseconds by what is done, in this process."""
    from feather_sglang.bench import engine

    settings = {"schedule_policy": "fcfs", "max_total_tokens": 4_096}
    scheduler = engine.start(Path(tempfile.gettempdir()) / "feather-tiny-llama", overlap=True, settings=settings)
    for i in range(WAITING):
        scheduler.process_input_requests([engine.tokenized(str(i), [i % 500 + 2] * PROMPT, 4)])
    assert len(scheduler.waiting_queue) == WAITING
    inquirer = scheduler.load_inquirer
    return {
        "drop the admitted": least(lambda: drop_admitted(scheduler)),
        "sum for the prefill statistics": least(inquirer._get_num_pending_tokens),
        "load snapshot": least(inquirer.get_loads),
    }


def drop_admitted(scheduler: Any) -> Callable[[], None]:
    """As ``_get_new_batch_prefill_raw`` does it; what it returns puts them back, unmeasured."""
    admitted = scheduler.waiting_queue[:: WAITING // ADMITTED]
    if hasattr(scheduler.waiting_queue, "remove_admitted"):
        scheduler.waiting_queue.remove_admitted(admitted)
    else:
        taken = set(admitted)
        scheduler.waiting_queue = [x for x in scheduler.waiting_queue if x not in taken]
    return lambda: scheduler.waiting_queue.extend(admitted)


def least(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(RUNS):
        began = time.process_time()
        undo = work()
        times.append(time.process_time() - began)
        if callable(undo):
            undo()
    return min(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sglang", type=Path, help="folder of a patched copy, to be measured beside")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measure()), flush=True)
        return
    rows = {"stock": _apart(None)}
    if given.sglang is not None:
        rows["patched"] = _apart(given.sglang)
    print(f"{WAITING} waiting x {PROMPT} tokens, {ADMITTED} admitted; least CPU time of {RUNS}, microseconds")
    print(f"{'':34}" + "".join(f"{name:>10}" for name in rows))
    for what in rows["stock"]:
        print(f"{what:34}" + "".join(f"{row[what]:10,.0f}" for row in rows.values()))


def _apart(sglang: Path | None) -> dict[str, float]:
    path = [str(sglang)] if sglang is not None else []
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
    command = [sys.executable, "-W", "ignore", __file__, "--here"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    costs: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return costs


if __name__ == "__main__":
    main()
