"""The dry run: every row is planned and every call checked without a GPU; small batches are computed, too."""

from __future__ import annotations

import torch

from bench.gpu import dry
from bench.gpu.cells import AUTO, CASCADE, PLAIN, SHAPE, Cell, Layout, cells
from bench.gpu.kernels import Cache, Classes, planned
from bench.gpu.reference import MOST_ERROR, error

SMALL = [
    Cell(kernel, families, prefix=48, page=page, interleaved=interleaved)
    for page in (1, 16)
    for kernel, families, interleaved in (
        (PLAIN, (3, 3), True),
        (PLAIN, (3, 3), False),
        (AUTO, (3, 3), False),
        (CASCADE, (3, 2, 1), False),
        (CASCADE, (4,), False),
    )
]


def rehearse() -> int:
    """0; 1 if a call would be refused, or a small batch came out wrong. Says what it found."""
    classes, against = dry.classes()
    print(f"signatures: {against}\n\nsmall batches, computed from the arrays, against attention row by row:")
    failed = 0
    for cell in SMALL:
        try:
            found = small_error(cell, classes)
        except dry.Refused as refusal:
            found, failed = float("inf"), failed + 1
            print(f"  REFUSED {cell.name}: {refusal}")
            continue
        failed += found > MOST_ERROR
        print(f"  {'ok' if found <= MOST_ERROR else 'WRONG'} {cell.name}: error {found:.1e}")
    print("\nrows, most important first; every call is checked, nothing is computed (no cache):")
    for i, cell in enumerate(cells()):
        try:
            plan_only(cell, classes)
        except dry.Refused as refusal:
            failed += 1
            print(f"  REFUSED {i} {cell.name}: {refusal}")
            continue
        print(f"  {i:>3} {cell.name}: {cell.total_kv:,} KV tokens, {cell.distinct_kv:,} distinct")
    print(f"\n{failed} failed" if failed else "\nall calls are as FlashInfer takes them; nothing ran on a GPU")
    return 1 if failed else 0


def small_error(cell: Cell, classes: Classes) -> float:
    """Of a small cell, computed by a stand-in."""
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(_size(cell, cell.pages), generator=generator).to(SHAPE.kv_type) for _ in range(2))
    cache: Cache = (keys, values)
    query = torch.randn(cell.rows, SHAPE.query_heads, SHAPE.head_size, generator=generator).to(SHAPE.query_type)
    layout = Layout.of(cell, "cpu")
    output = planned(cell, layout, classes, torch.empty(1)).run(query, cache)
    return error(output, query, layout, cache)


def plan_only(cell: Cell, classes: Classes) -> None:
    """The calls of a cell of any size."""
    no_pages = torch.empty(_size(cell, 0), dtype=SHAPE.kv_type)
    query = torch.empty(cell.rows, SHAPE.query_heads, SHAPE.head_size, dtype=SHAPE.query_type)
    planned(cell, Layout.of(cell, "cpu"), classes, torch.empty(1)).run(query, (no_pages, no_pages))


def _size(cell: Cell, pages: int) -> tuple[int, ...]:
    page = () if cell.page == 1 else (cell.page,)
    return (pages, *page, SHAPE.kv_heads, SHAPE.head_size)
