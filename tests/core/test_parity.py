"""One trace through the index and through a naive model that compares tokens: the same answers (sglang#37584)."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest

from feather_sglang._cht import Index
from tests.core.naive_index import NaiveIndex

CHUNK = 4
PLENTY = 1 << 40
CONTAINERS = (list, tuple, lambda t: array("q", t), lambda t: np.array(t, dtype=np.int64))
NAMESPACES = ((), (None,), ("",), ("a", "bc"), ("ab", "c"))


class Trace:
    """Random operations on both, from one seed."""

    def __init__(self, seed, order, barrier_min, lanes):
        self.random = random.Random(seed)
        self.lanes = range(lanes)
        self.index = Index(
            chunk_size=CHUNK,
            page_size=1,
            order=order,
            aging=0.0,
            barrier_min=barrier_min,
            max_wait_tokens=PLENTY,
            kv_capacity=PLENTY,
            hash_key=(seed, 7),
        )
        self.model = NaiveIndex(chunk_size=CHUNK, order=order, barrier_min=barrier_min)
        self.prompts = [[]]
        self.next = 0

    def arrive(self):
        draw = self.random
        prompt = draw.choice(self.prompts)
        prompt = prompt[: draw.randrange(len(prompt) + 1) // CHUNK * CHUNK]
        for _ in range(draw.randrange(1, 6)):
            prompt = prompt + [draw.choice((-1, 5, 1 << 62))] * CHUNK
        prompt = prompt + [9] * draw.randrange(1, CHUNK)
        self.prompts.append(prompt)
        id, self.next = self.next, self.next + 1
        fields = {
            "arrival": (draw.randrange(3), id),
            "namespace": draw.choice(NAMESPACES) if draw.random() < 0.2 else (),
            "shareable": draw.choice((len(prompt), len(prompt), len(prompt), 6)),
            "leads": draw.random() < 0.9,
            "lane": draw.choice(self.lanes),
        }
        self.model.insert(id, prompt, **fields)
        cut = draw.randrange(len(prompt) + 1)
        segments = [draw.choice(CONTAINERS)(part) for part in (prompt[:cut], prompt[cut:])]
        self.index.insert(id, segments, length=len(prompt), **fields)

    def plan(self):
        for each in (self.index, self.model):
            each.begin()
        prefill = self.random.choice((15, 60, PLENTY))
        order, held, *_, end = self.index.plan(
            now=0, kv_tokens=PLENTY, rows=1 << 20, prefill_tokens=prefill, idle=False
        )
        assert (order, held, end) == self.model.plan(prefill)
        keep = self.random.randrange(len(order) + 1)
        for each in (self.index, self.model):
            each.undo(keep)
        self.compare()
        reused = [(c[0], self.random.choice((c[2] - c[1], c[2] - c[1], c[2] // 3))) for c in order[:keep]]
        refused = [reused.pop()[0]] if reused and self.random.random() < 0.2 else []
        for each in (self.index, self.model):
            each.settle(reused, refused)

    def publish(self):
        rows = self.index.running()
        if rows:
            id = self.random.choice(sorted(rows))
            tokens, computing = self.random.randrange(self.model.requests[id].length + 1), self.random.random() < 0.5
            for each in (self.index, self.model):
                each.publish(id, tokens, computing)

    def leave(self):
        if self.model.requests:
            id, whole = self.random.choice(sorted(self.model.requests)), self.random.random() < 0.5
            for each in (self.index, self.model):
                each.leave(id, whole)
            assert id not in self.index

    def change_lane(self):
        if self.model.requests:
            id, lane = self.random.choice(sorted(self.model.requests)), self.random.choice(self.lanes)
            for each in (self.index, self.model):
                each.set_lane(id, lane)

    def forget(self):
        for each in (self.index, self.model):
            each.forget()

    def compare(self):
        stats = self.index.stats()
        figures = self.model.figures()
        assert {name: stats[name] for name in figures} == figures
        assert self.index.best() == self.model.best()
        order, shared = self.index.rows_by_family()
        assert sorted(order) == sorted(self.index.running())
        assert shared == self.model.shared_along(order)
        self.index.check_integrity()


@pytest.mark.parametrize("order", ["held", "missing"])
@pytest.mark.parametrize("barrier_min", [4, 12, 1000])
@pytest.mark.parametrize("lanes", [1, 3])
def test_the_same_trace_gives_the_same_answers(order, barrier_min, lanes):
    for seed in range(12):
        trace = Trace(seed, order, barrier_min, lanes)
        steps = [trace.arrive, trace.plan, trace.publish, trace.leave, trace.change_lane, trace.forget]
        for step in trace.random.choices(steps, weights=(8, 5, 5, 4, lanes - 1, 1), k=150):
            step()
            trace.compare()
