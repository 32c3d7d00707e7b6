"""What every kernel is checked against before it is timed: attention in float32, row by row."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.gpu.cells import SHAPE, Layout
from bench.gpu.kernels import Cache

CHECKED_ROWS = 16
"""Rows of a cell that are computed again, spread over the batch."""
MOST_ERROR = 1e-2
"""Norm of the difference over the norm of the reference; bf16 rounds to 4e-3, twice where results are merged."""


def attention(query: Tensor, slots: Tensor, cache: Cache) -> Tensor:
    """One row: [query heads, size] float32.

    :param query: [query heads, size].
    :param slots: [KV tokens].
    """
    group = SHAPE.query_heads // SHAPE.kv_heads
    keys, values = (each.flatten(0, -3)[slots].float().repeat_interleave(group, 1) for each in cache)
    weights = torch.softmax(torch.einsum("hd,khd->hk", query.float(), keys) * SHAPE.scale, -1)
    return torch.einsum("hk,khd->hd", weights, values)


def error(output: Tensor, query: Tensor, layout: Layout, cache: Cache) -> float:
    """Of the worst of the checked rows; infinite where an output is not a finite number."""
    rows = range(0, len(query), max(1, len(query) // CHECKED_ROWS))
    worst = 0.0
    for row in (*rows, len(query) - 1):
        expected = attention(query[row], layout.slots(row), cache)
        found = float((output[row].float() - expected).norm() / expected.norm())
        worst = max(worst, found if found == found else float("inf"))
    return worst
