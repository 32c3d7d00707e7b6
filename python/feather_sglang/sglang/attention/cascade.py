"""FlashInfer's ``MultiLevelCascadeAttentionWrapper``, driven by a plan: eagerly, and for captured graphs.

Written to what FlashInfer 0.6.13 and 0.7.2 have in common. Nothing here needs a GPU: the class of the wrapper is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from feather_sglang.core.sharing import Range, Sharing
from feather_sglang.sglang.attention.levels import arrays_of, levels_of, padded

_INT_WORKSPACE = 8 << 20
"""Bytes that FlashInfer sets aside for the plan of one level."""


class Shape(NamedTuple):
    """What all attention layers of a model have in common."""

    query_heads: int
    kv_heads: int
    head_size: int
    scale: float
    """Of the logits."""
    query_type: torch.dtype
    kv_type: torch.dtype


class Cascade:
    """Decode attention of a batch that shares, once planned the same for every layer.

    :param new_wrapper: FlashInfer's class, or one with its contract.
    :param workspace: its workspace, on the device of the KV cache.
    :param table: [rows, tokens] of SGLang's ``req_to_token``.
    """

    def __init__(self, new_wrapper: Callable[..., Any], workspace: Tensor, table: Tensor, shape: Shape) -> None:
        self._new_wrapper = new_wrapper
        self._workspace = workspace
        self._table = table
        self._shape = shape
        self._eager: dict[int, Any] = {}
        """By number of levels."""
        self._captured: dict[int, Any] = {}
        """By batch size."""
        self._buffers: _Buffers | None = None

    def plan(self, plan: Sharing, rows: Tensor, lengths: Sequence[int]) -> Any:
        """A wrapper that is ready to ``run(query, (keys, values))`` for this batch.

        :param rows: [batch] rows of the table.
        :param lengths: KV tokens of each row.
        """
        levels = levels_of(plan, lengths)
        wrapper = self._eager.get(len(levels))
        if wrapper is None:
            wrapper = self._eager[len(levels)] = self._new_wrapper(len(levels), self._workspace, "NHD")
        self._begin(wrapper, levels, rows)
        return wrapper

    def prepare_capture(self, rows: int, shared: int, tail_slots: Tensor) -> None:
        """Before graphs are captured: what they read their arrays from.

        :param rows: the largest batch.
        :param shared: KV tokens that groups can share, in all.
        :param tail_slots: [tokens of all tails, at most] int32, used by nobody else while a graph of this runs.
        """
        device = self._table.device
        self._buffers = _Buffers(
            qo_indptr=[_zeros(rows + 1, device) for _ in range(2)],
            kv_indptr=[_zeros(rows + 1, device) for _ in range(2)],
            kv_indices=[_zeros(shared, device), tail_slots],
            last_page_len=[_zeros(rows, device) for _ in range(2)],
            int_workspaces=[torch.empty(_INT_WORKSPACE, dtype=torch.uint8, device=device) for _ in range(2)],
        )

    def capture(self, rows: Tensor) -> Any:
        """A wrapper for the graph of ``len(rows)`` rows, planned for one group of all of them."""
        assert self._buffers is not None
        size, buffers = len(rows), self._buffers
        wrapper = self._captured[size] = self._new_wrapper(
            2,
            self._workspace,
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf_arr=[buffer[: size + 1] for buffer in buffers.qo_indptr],
            paged_kv_indptr_buf_arr=[buffer[: size + 1] for buffer in buffers.kv_indptr],
            paged_kv_indices_buf_arr=buffers.kv_indices,
            paged_kv_last_page_len_buf_arr=[buffer[:size] for buffer in buffers.last_page_len],
        )
        # One for all graphs: each is planned again before it is replayed, and one is replayed at a time.
        wrapper.reset_workspace_buffer(self._workspace, buffers.int_workspaces)
        plan = Sharing((Range(tuple(range(size)), 0, 1, 0),), (0,) * size, 0)
        return self.replay(plan, rows, [1] * size)

    def replay(self, plan: Sharing, rows: Tensor, lengths: Sequence[int]) -> Any:
        """Plan the captured graph of ``len(lengths)`` rows for a batch; those behind the plan's are padding.

        :param plan: of one level.
        """
        size = len(lengths)
        wrapper = self._captured[size]
        self._begin(wrapper, [padded(segments, size) for segments in levels_of(plan, lengths)], rows)
        return wrapper

    def _begin(self, wrapper: Any, levels: Sequence[Any], rows: Tensor) -> None:
        shape = self._shape
        wrapper.plan(
            *arrays_of(levels, self._table, rows),
            shape.query_heads,
            shape.kv_heads,
            shape.head_size,
            1,
            causal=False,
            sm_scale=shape.scale,
            q_data_type=shape.query_type,
            kv_data_type=shape.kv_type,
        )


class _Buffers(NamedTuple):
    """By level, as ``Arrays``."""

    qo_indptr: list[Tensor]
    kv_indptr: list[Tensor]
    kv_indices: list[Tensor]
    last_page_len: list[Tensor]
    int_workspaces: list[Tensor]


def _zeros(length: int, device: torch.device) -> Tensor:
    return torch.zeros(length, dtype=torch.int32, device=device)
