"""What is measured, and how: everything interleaved in one process, medians of rounds."""

from __future__ import annotations

import statistics
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feather_sglang._cht import Index
from feather_sglang.bench.overhead_clock import canary, microseconds, no_collection
from feather_sglang.bench.overhead_index import Ours
from feather_sglang.bench.overhead_prompts import Prompts, as_array

BATCH = 100
ROUNDS = 7
REPEATS = 32
"""Of what takes microseconds, in every round. Of 32 passes in a row, first come, first served refreshes the prefixes of
the first 128 requests in one."""


@dataclass
class Cell:
    """Microseconds at ``tokens`` a prompt and ``waiting`` requests, by what was measured."""

    tokens: int
    waiting: int
    bytes_per_request: float = 0.0
    canary: float = 0.0
    times: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def key(self) -> str:
        return f"T={self.tokens},W={self.waiting}"

    def median(self, name: str) -> float:
        return statistics.median(self.times[name])

    def row(self) -> dict[str, Any]:
        """Medians, and the quartiles around them."""
        quartiles = {name: np.percentile(times, [25, 50, 75]).tolist() for name, times in self.times.items()}
        return {
            "tokens": self.tokens,
            "waiting": self.waiting,
            "canary_us": self.canary,
            "bytes_per_request": self.bytes_per_request,
            "rounds": {name: len(times) for name, times in self.times.items()},
            "us": quartiles,
            "mean_us": {name: statistics.mean(times) for name, times in self.times.items()},
        }


def compare(tokens: int, waiting: int, trees: Sequence[str], policies: Sequence[str] | None = None) -> Cell:
    """Upstream's passes (None: of all policies) and ours over one queue."""
    from feather_sglang.bench.overhead_upstream import Upstream

    prompts = Prompts(tokens, waiting)
    queue = list(prompts)
    upstream = Upstream(prompts.prefixes(), queue, trees)
    ours = Ours(prompts.prefixes(), queue)
    cell = Cell(tokens, waiting, ours.bytes_per_request, canary())
    _require_whole_batch(ours, cell)
    calls = [(tree, name) for tree, name in upstream.calls() if policies is None or name in policies]
    batch = min(BATCH, waiting)
    for tree, name in calls:
        upstream.order(tree, name)  # the first pass splits nodes and sorts
    upstream.match_first("rust", batch)
    upstream.insert_one()
    one_prompt = {"tree match": upstream.match_one, "tree insert": upstream.insert_one, "xxh3": upstream.hash_one}
    with no_collection():
        for _ in range(ROUNDS):
            for tree, name in calls:
                for _ in range(REPEATS if upstream.is_first_come(name) else 1):
                    cell.times[f"{name} ({tree} tree)"].append(microseconds(lambda: upstream.order(tree, name)))  # noqa: B023
            cell.times["matches"].append(microseconds(lambda: upstream.match_first("rust", batch)))
            _measure(ours, batch, cell)
            for _ in range(REPEATS):
                for name, call in one_prompt.items():
                    cell.times[name].append(microseconds(call))
    return cell


def alone(tokens: int, waiting: int) -> Cell:
    """Ours only."""
    prompts = Prompts(tokens, waiting)
    ours = Ours(prompts.prefixes(), prompts)
    cell = Cell(tokens, waiting, ours.bytes_per_request, canary())
    _require_whole_batch(ours, cell)
    with no_collection():
        for _ in range(ROUNDS):
            _measure(ours, min(BATCH, waiting), cell)
    return cell


def _measure(ours: Ours, batch: int, cell: Cell) -> None:
    cell.times["form cold"].append(microseconds(lambda: ours.form(batch)))
    ours.undo()
    for _ in range(REPEATS):
        cell.times["form"].append(microseconds(lambda: ours.form(batch)))
        cell.times["undo"].append(microseconds(ours.undo))
        cell.times["best"].append(microseconds(lambda: _repeat(ours.best, 100)) / 100)
    for _ in range(REPEATS + 1):
        cell.times["insert"].append(microseconds(ours.insert))
        ours.remove()
    del cell.times["insert"][-REPEATS - 1]  # it brings the tokens into the cache


def _require_whole_batch(ours: Ours, cell: Cell) -> None:
    batch = min(BATCH, cell.waiting)
    named = ours.form(batch)
    ours.undo()
    if named != batch:
        raise RuntimeError(f"{cell.key}: {named} requests named instead of {batch}")


def _repeat(call: Callable[[], None], times: int) -> None:
    for _ in range(times):
        call()


def hash_over_read_bandwidth(pairs: int = 9, tokens: int = 1 << 23) -> float:
    """The speed of inserting a prompt that lies in memory, not in the cache, over that of NumPy's sum; a median."""
    numbers = np.random.default_rng(1).integers(0, 1 << 40, tokens, dtype=np.int64)
    prompt: array[int] = as_array(numbers)
    index = Index(
        chunk_size=64,
        page_size=1,
        order="held",
        aging=0.0,
        barrier_min=0,
        max_wait_tokens=0,
        kv_capacity=0,
        hash_key=(1, 2),
    )
    view = np.frombuffer(prompt, dtype=np.int64)
    ratios = []
    for i in range(pairs):
        read = microseconds(view.sum)
        hashed = microseconds(lambda: index.insert(i, [prompt], length=tokens, arrival=(0, i)))  # noqa: B023
        index.leave(i, False)
        ratios.append(read / hashed)
    return statistics.median(ratios)
