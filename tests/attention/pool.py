"""Rows of a request table over random keys and values, some of which share slots."""

from __future__ import annotations

import random

import torch

from feather_sglang.core.sharing import Paths, in_batch_order, paths_from_slots
from feather_sglang.sglang.attention.cascade import Shape

SHAPE = Shape(6, 2, 16, 0.2, torch.float32, torch.float32)
SLOTS = 4000


class Pool:
    """Rows of a request table over random keys and values, some of them sharing slots like paths of a radix tree."""

    def __init__(self, seed: int, rows: int = 12, shape: Shape = SHAPE) -> None:
        self.shape = shape
        self.rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        size = (SLOTS, self.shape.kv_heads, self.shape.head_size)
        self.cache = tuple(torch.randn(size, generator=generator) for _ in range(2))
        self.query = torch.randn(rows, self.shape.query_heads, self.shape.head_size, generator=generator)
        free = list(range(1, SLOTS))
        self.rng.shuffle(free)
        prefixes = [[]]
        for _ in range(self.rng.randrange(1, 6)):
            above = self.rng.choice(prefixes)
            prefixes.append(above + [free.pop() for _ in range(self.rng.randrange(1, 40))])
        paths = [self.rng.choice(prefixes) for _ in range(rows)]
        if self.rng.random() < 0.8:
            paths.sort()  # families side by side, as the row order has them
        paths = [path + [free.pop() for _ in range(self.rng.randrange(1, 20))] for path in paths]
        self.lengths = [len(path) for path in paths]
        self.rows = torch.tensor(self.rng.sample(range(2 * rows), rows))
        self.table = torch.zeros(2 * rows, max(self.lengths) + 4, dtype=torch.int32)
        for row, path in zip(self.rows, paths, strict=True):
            self.table[row, : len(path)] = torch.tensor(path)

    def paths(self) -> Paths:
        table = self.table[self.rows]
        return in_batch_order(paths_from_slots(lambda rows, k: table[list(rows), k].tolist(), self.lengths))

    def attention(self, row: int) -> torch.Tensor:
        """Plain attention of one row."""
        slots = self.table[self.rows[row], : self.lengths[row]].long()
        keys, values = (
            each[slots].repeat_interleave(self.shape.query_heads // self.shape.kv_heads, 1) for each in self.cache
        )
        weights = torch.softmax(torch.einsum("hd,khd->hk", self.query[row], keys) * self.shape.scale, -1)
        return torch.einsum("hk,khd->hd", weights, values)

    def check(self, output: torch.Tensor, tolerance: float = 1e-5) -> None:
        expected = torch.stack([self.attention(row) for row in range(len(self.lengths))])
        torch.testing.assert_close(output[: len(expected)], expected, rtol=tolerance, atol=tolerance)
