"""What is measured, most important first: batches of Llama-3-8B's attention, and who of them shares which KV."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from feather_sglang.core.sharing import FREE, Paths, Sharing, plan_sharing
from feather_sglang.sglang.attention.cascade import Shape

LAYERS = 32
SHAPE = Shape(32, 8, 128, 128**-0.5, torch.bfloat16, torch.bfloat16)
"""One layer of Llama-3-8B."""
TOKEN_BYTES = 2 * SHAPE.kv_heads * SHAPE.head_size * 2
"""KV of one token in one layer."""
SUFFIX = 256
"""Tokens of every row that are its own."""

PLAIN, AUTO, CASCADE = "plain", "auto", "cascade"
"""FlashInfer's batch decode as SGLang calls it (tensor cores, FA2), the same on the kernel that the cascade runs on
(FA3 on Hopper), and the cascade as this project calls it."""


class Cell(NamedTuple):
    """One batch on one kernel."""

    kernel: str
    families: tuple[int, ...]
    """Rows of each."""
    prefix: int
    """Tokens that the rows of a family share."""
    page: int = 1
    interleaved: bool = False
    """Neighbours are of different families; else families come one after the other."""

    @property
    def rows(self) -> int:
        return sum(self.families)

    @property
    def length(self) -> int:
        """KV tokens of every row."""
        return self.prefix + SUFFIX

    @property
    def total_kv(self) -> int:
        """KV tokens that rows attend to, shared ones counted for each."""
        return self.rows * self.length

    @property
    def distinct_kv(self) -> int:
        """The same, shared ones counted once."""
        return len(self.families) * self.prefix + self.rows * SUFFIX

    @property
    def pages(self) -> int:
        """Pages of a pool that holds it; no row reads page 0."""
        return 1 + self.distinct_kv // self.page

    @property
    def name(self) -> str:
        if len(self.families) == 1:
            who = f"{self.rows} rows of one family"
        elif min(self.families) == 1:
            who = f"{self.rows} rows of one family but one"
        else:
            who = f"{self.rows} rows of {len(self.families)} families {'interleaved' if self.interleaved else 'sorted'}"
        return f"{who}, prefix {self.prefix}, page {self.page}, {self.kernel}"

    def family_of_rows(self) -> list[int]:
        count = len(self.families)
        if self.interleaved:
            return [row % count for row in range(self.rows)]
        return [family for family, rows in enumerate(self.families) for _ in range(rows)]

    def sharing(self) -> Sharing:
        """The plan that the backend makes of these rows: one level, as its graphs have it."""
        family = self.family_of_rows()
        shared = [0, *(self.prefix * (one == other) for one, other in pairwise(family))]
        return plan_sharing(Paths(range(self.rows), shared), FREE._replace(levels=1))


class Layout(NamedTuple):
    """The pages of a cell's rows in a pool."""

    table: Tensor
    """[rows, pages of a row] int32, as SGLang's ``req_to_token`` where pages are of one token."""
    page: int

    @classmethod
    def of(cls, cell: Cell, device: str) -> Layout:
        """Prefixes lie one behind the other, as prefill writes them; behind them the tails, a page of every row in
        turn, as decoding rows take them.
        """
        if cell.prefix % cell.page or SUFFIX % cell.page:
            raise ValueError(f"a prefix of {cell.prefix} tokens is not a multiple of the page of {cell.page}")
        prefix, tail, rows = cell.prefix // cell.page, SUFFIX // cell.page, cell.rows
        family = torch.tensor(cell.family_of_rows(), dtype=torch.int32).unsqueeze(1)
        row = torch.arange(rows, dtype=torch.int32).unsqueeze(1)
        shared = 1 + family * prefix + torch.arange(prefix, dtype=torch.int32)
        own = 1 + len(cell.families) * prefix + torch.arange(tail, dtype=torch.int32) * rows + row
        return cls(torch.cat([shared, own], 1).to(device), cell.page)

    def slots(self, row: int) -> Tensor:
        """[KV tokens] int64: where they lie in the pool."""
        pages = self.table[row].long().unsqueeze(1) * self.page
        return (pages + torch.arange(self.page, device=pages.device)).flatten()


EIGHT, HUNDRED_OF_EIGHT = (100,) * 8, (13, 13, 13, 13, 12, 12, 12, 12)
PREFIXES = (4096, 10240, 1024, 8192, 2048)
"""In order of importance."""


def cells() -> list[Cell]:
    """Most important first: the question is whether order, row order, or the cascade brings the gain, and where."""
    chosen: list[Cell] = []
    for prefix in PREFIXES:
        chosen += _arms(prefix, 1)
        if prefix == PREFIXES[0]:
            chosen += [Cell(AUTO, EIGHT, prefix), Cell(AUTO, (100,), prefix)]
    chosen += _price()
    for prefix in PREFIXES[:3]:
        chosen += _arms(prefix, 16)
    for prefix in PREFIXES[1:3]:
        chosen += [Cell(AUTO, EIGHT, prefix), Cell(AUTO, (100,), prefix)]
    return chosen


def _arms(prefix: int, page: int) -> Iterator[Cell]:
    yield Cell(PLAIN, (100,), prefix, page)
    yield Cell(PLAIN, EIGHT, prefix, page, interleaved=True)
    yield Cell(PLAIN, EIGHT, prefix, page)
    yield Cell(CASCADE, EIGHT, prefix, page)
    yield Cell(CASCADE, (100,), prefix, page)
    yield Cell(PLAIN, HUNDRED_OF_EIGHT, prefix, page, interleaved=True)
    yield Cell(PLAIN, HUNDRED_OF_EIGHT, prefix, page)
    yield Cell(CASCADE, HUNDRED_OF_EIGHT, prefix, page)
    yield Cell(PLAIN, (99, 1), prefix, page)


def _price() -> Iterator[Cell]:
    """Small batches and short prefixes, where the cascade's launches may cost more than it saves."""
    for rows, prefix in ((128, 64), (128, 256), (8, 4096), (8, 1024)):
        yield Cell(PLAIN, (rows,), prefix)
        yield Cell(CASCADE, (rows,), prefix)
