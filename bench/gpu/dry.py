"""Stand-ins for FlashInfer's wrappers where there is no GPU.

They refuse what the installed FlashInfer's signatures do not take, and arrays that do not fit together. Given a cache,
they compute from the arrays that were planned, in float32, by FlashInfer's documented contract: of each level, rows
``qo_indptr[i] .. qo_indptr[i + 1]`` attend to the pages ``kv_indices[kv_indptr[i] .. kv_indptr[i + 1]]``, the last of
which holds ``last_page_len[i]`` tokens, and results are merged by their log-sums of exponentials.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bench.gpu.kernels import Cache, Classes


class Refused(ValueError):
    """A call that FlashInfer would not take."""


def classes() -> tuple[Classes, str]:
    """Stand-ins, and against which FlashInfer they check signatures."""
    try:
        import flashinfer
    except ImportError as error:
        return Classes(_Decode.checking(None), _Cascade.checking(None)), f"not installed ({error}): arrays only"
    return (
        Classes(
            _Decode.checking(flashinfer.BatchDecodeWithPagedKVCacheWrapper),
            _Cascade.checking(flashinfer.MultiLevelCascadeAttentionWrapper),
        ),
        f"flashinfer-python {flashinfer.__version__}",
    )


class _StandIn:
    real: Any = None

    @classmethod
    def checking(cls, real: Any) -> Any:
        return type(cls.__name__, (cls,), {"real": real})

    def __init__(self, *args: Any, **named: Any) -> None:
        self._bind("__init__", args, named)
        self._buffers = {name: each for name, each in named.items() if "buf" in name}

    def _bind(self, method: str, args: Sequence[Any], named: dict[str, Any]) -> None:
        if self.real is None:
            return
        # FlashInfer 0.7 hands ``plan(..., **kwargs)`` on to ``_plan_impl``, which has the names.
        taken = getattr(self.real, f"_{method}_impl", None) or getattr(self.real, method)
        try:
            inspect.signature(inspect.unwrap(taken)).bind(self, *args, **named)
        except TypeError as error:
            raise Refused(f"{self.real.__name__}.{method}: {error}") from None

    def run(self, q: Tensor, cache: Cache) -> Tensor:
        self._bind("run", (q, cache), {})
        if q.dtype != self._types[0] or any(each.dtype != self._types[1] for each in cache):
            raise Refused(f"planned for {self._types}, run on {q.dtype} and {cache[0].dtype}")
        if q.shape[1:] != self._query_shape:
            raise Refused(f"queries {list(q.shape)}: planned for {list(self._query_shape)} a row")
        keys, values = (each if each.ndim == 4 else each.unsqueeze(1) for each in cache)
        if any(each.shape[1:] != self._page_shape for each in (keys, values)):
            raise Refused(f"pages of {list(keys.shape[1:])}: planned for {list(self._page_shape)}")
        if not len(keys):
            return torch.full_like(q, torch.nan)
        outputs, sums = zip(*(self._level(level, q, keys, values) for level in self._levels), strict=True)
        weights = torch.softmax(torch.stack(sums), 0).unsqueeze(-1)
        return (weights * torch.stack(outputs)).sum(0).to(q.dtype)

    def _planned(self, levels: Sequence[tuple[Tensor, ...]], heads: Sequence[int], page: int, types: Any) -> None:
        for level in levels:
            _check(level, page, rows=int(levels[-1][0][-1]))
        self._levels = levels
        self._query_shape = (heads[0], heads[2])
        self._page_shape = (page, heads[1], heads[2])
        self._types = types

    def _level(self, level: tuple[Tensor, ...], q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        queries, pages, indices, last = (each.tolist() for each in level)
        output, log_sum = torch.zeros(q.shape), torch.full(q.shape[:2], -torch.inf)
        for i in range(len(last)):
            first, end = queries[i], queries[i + 1]
            used = indices[pages[i] : pages[i + 1]]
            if not used or first == end:
                continue
            tokens = (len(used) - 1) * keys.shape[1] + last[i]
            k, v = (each[used].flatten(0, 1)[:tokens].float() for each in (keys, values))
            k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
            logits = torch.einsum("qhd,khd->qhk", q[first:end].float(), k) * q.shape[2] ** -0.5
            log_sum[first:end] = torch.logsumexp(logits, -1)
            output[first:end] = torch.einsum("qhk,khd->qhd", torch.softmax(logits, -1), v)
        return output, log_sum


class _Decode(_StandIn):
    def plan(self, indptr: Tensor, indices: Tensor, last: Tensor, *args: Any, **named: Any) -> None:
        self._bind("plan", (indptr, indices, last, *args), named)
        *heads, page = args
        names = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
        _fits((indptr, indices, last), [self._buffers[name] for name in names])
        rows = torch.arange(len(last) + 1, dtype=torch.int32)
        self._planned([(rows, indptr, indices, last)], heads, page, (named["q_data_type"], named["kv_data_type"]))


class _Cascade(_StandIn):
    def reset_workspace_buffer(self, *args: Any) -> None:
        self._bind("reset_workspace_buffer", args, {})

    def plan(self, *args: Any, **named: Any) -> None:
        self._bind("plan", args, named)
        *arrays, query_heads, kv_heads, size, page = args
        names = ("qo_indptr", "paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len")
        buffers = [self._buffers[f"{name}_buf_arr"] for name in names]
        for (queries, *paged), (query_buffer, *paged_buffers) in zip(
            zip(*arrays, strict=True), zip(*buffers, strict=True), strict=True
        ):
            _fits(paged, paged_buffers)
            if len(queries) != len(query_buffer):
                raise Refused(f"{len(queries)} row offsets for a buffer of {len(query_buffer)}")
        levels = list(zip(*arrays, strict=True))
        self._planned(levels, (query_heads, kv_heads, size), page, (named["q_data_type"], named["kv_data_type"]))


def _fits(arrays: Sequence[Tensor], buffers: Sequence[Tensor]) -> None:
    """A captured graph reads the buffers: offsets and last pages fill them, slots may leave some over."""
    (offsets, slots, last), (for_offsets, for_slots, for_last) = arrays, buffers
    if len(offsets) != len(for_offsets) or len(last) != len(for_last) or len(slots) > len(for_slots):
        raise Refused(
            f"{len(offsets)} offsets, {len(slots)} slots and {len(last)} last pages for buffers of "
            f"{len(for_offsets)}, {len(for_slots)} and {len(for_last)}"
        )


def _check(level: tuple[Tensor, ...], page: int, rows: int) -> None:
    queries, pages, indices, last = level
    if any(each.dtype != torch.int32 for each in level):
        raise Refused(f"arrays of {[each.dtype for each in level]}: FlashInfer takes int32")
    if not len(queries) == len(pages) == len(last) + 1:
        raise Refused(f"{len(queries)} row offsets, {len(pages)} page offsets and {len(last)} last pages")
    if queries[0] != 0 or pages[0] != 0 or min(queries.diff().min(), pages.diff().min()) < 0:
        raise Refused("offsets begin at 0 and do not fall")
    if int(queries[-1]) != rows or int(pages[-1]) != len(indices):
        raise Refused(f"offsets end at {int(queries[-1])} of {rows} rows, {int(pages[-1])} of {len(indices)} pages")
    held = pages.diff() > 0
    if not torch.equal((last > 0) & (last <= page), held) or bool((last[~held] != 0).any()):
        raise Refused(f"last pages hold 1 to {page} tokens, and none where there is no page")
