"""FlashInfer's calls: its batch decode as SGLang makes them, its cascade as this project's backend makes them.

The classes are given, so that a dry run calls stand-ins that check every argument. Everything is planned in the mode
for captured graphs, which is how a server decodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.gpu.cells import AUTO, CASCADE, SHAPE, Cell, Layout
from feather_sglang.sglang.attention.cascade import Cascade
from feather_sglang.sglang.attention.levels import arrays_of, levels_of

WORKSPACE_BYTES = 512 << 20
Cache = tuple[Tensor, Tensor]
"""Keys and values of one layer: [pages, page, KV heads, size]; with pages of one token, as SGLang has them, no page
dimension."""


class Classes(NamedTuple):
    """FlashInfer's wrappers, or stand-ins."""

    decode: Callable[..., Any]
    cascade: Callable[..., Any]


class Planned(NamedTuple):
    """Attention that is ready to run."""

    run: Callable[[Tensor, Cache], Tensor]
    """[rows, query heads, size] of the same and a layer's cache."""
    plan_seconds: float
    """Of the host, to plan it once more: what a decode step pays, once for all layers."""


def planned(cell: Cell, layout: Layout, classes: Classes, workspace: Tensor) -> Planned:
    """A cell's attention. What is timed is the second plan: the first one builds and loads kernels."""
    if cell.kernel != CASCADE:
        plan, run = _decode(cell, layout, classes, workspace)
    elif cell.page == 1:
        plan, run = _cascade(cell, layout, classes, workspace)
    else:
        plan, run = _cascade_of_pages(cell, layout, classes, workspace)
    plan()
    began = time.perf_counter()
    plan()
    return Planned(run, time.perf_counter() - began)


Calls = tuple[Callable[[], None], Callable[[Tensor, Cache], Tensor]]


def _decode(cell: Cell, layout: Layout, classes: Classes, workspace: Tensor) -> Calls:
    """SGLang's ``FlashInferAttnBackend``: tensor cores from four query heads a KV head on, and FA2 by name."""
    device, (rows, pages) = workspace.device, layout.table.shape
    wrapper = classes.decode(
        workspace,
        "NHD",
        backend=_cascade_backend(device) if cell.kernel == AUTO else "fa2",
        use_cuda_graph=True,
        use_tensor_cores=SHAPE.query_heads // SHAPE.kv_heads >= 4,
        paged_kv_indptr_buffer=_zeros(rows + 1, device),
        paged_kv_indices_buffer=_zeros(rows * pages, device),
        paged_kv_last_page_len_buffer=_zeros(rows, device),
    )
    indptr = torch.arange(rows + 1, dtype=torch.int32) * pages
    last = torch.full((rows,), cell.page, dtype=torch.int32)

    def plan() -> None:
        wrapper.plan(
            indptr,
            layout.table.flatten(),
            last,
            SHAPE.query_heads,
            SHAPE.kv_heads,
            SHAPE.head_size,
            cell.page,
            q_data_type=SHAPE.query_type,
            kv_data_type=SHAPE.kv_type,
            sm_scale=SHAPE.scale,
        )

    return plan, wrapper.run


def _cascade(cell: Cell, layout: Layout, classes: Classes, workspace: Tensor) -> Calls:
    """The backend's own code, from the plan of the scheduler to the wrapper."""
    device, rows = workspace.device, cell.rows
    runner = Cascade(classes.cascade, workspace, layout.table, SHAPE)
    runner.prepare_capture(rows, len(cell.families) * cell.prefix + 1, _zeros(cell.total_kv, device))
    index = torch.arange(rows, device=device)
    wrapper = runner.capture(index)
    sharing, lengths = cell.sharing(), [cell.length] * rows

    def plan() -> None:
        runner.replay(sharing, index, lengths)

    return plan, wrapper.run


def _cascade_of_pages(cell: Cell, layout: Layout, classes: Classes, workspace: Tensor) -> Calls:
    """The same with whole pages in place of tokens, which the backend does not do yet: what would it bring?"""
    device, rows, page = workspace.device, cell.rows, cell.page
    of_pages = cell._replace(prefix=cell.prefix // page).sharing()
    levels = levels_of(of_pages, [cell.length // page] * rows)
    index = torch.arange(rows, device=device)
    arrays = arrays_of(levels, layout.table, index)
    wrapper = classes.cascade(
        2,
        workspace,
        "NHD",
        use_cuda_graph=True,
        qo_indptr_buf_arr=[_zeros(len(each), device) for each in arrays.qo_indptr],
        paged_kv_indptr_buf_arr=[_zeros(len(each), device) for each in arrays.kv_indptr],
        paged_kv_indices_buf_arr=[_zeros(len(each), device) for each in arrays.kv_indices],
        paged_kv_last_page_len_buf_arr=[_zeros(len(each), device) for each in arrays.last_page_len],
    )

    def plan() -> None:
        again = arrays_of(levels, layout.table, index)
        wrapper.plan(
            *again._replace(last_page_len=[each * page for each in again.last_page_len]),
            SHAPE.query_heads,
            SHAPE.kv_heads,
            SHAPE.head_size,
            page,
            causal=False,
            sm_scale=SHAPE.scale,
            q_data_type=SHAPE.query_type,
            kv_data_type=SHAPE.kv_type,
        )

    return plan, wrapper.run


def _cascade_backend(device: torch.device) -> str:
    """What the wrapper of the cascade chooses: it takes no name."""
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9
    return "fa3" if hopper else "fa2"


def _zeros(length: int, device: torch.device) -> Tensor:
    return torch.zeros(length, dtype=torch.int32, device=device)
