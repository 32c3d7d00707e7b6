"""The documented contract of FlashInfer's ``MultiLevelCascadeAttentionWrapper``, in plain PyTorch, on any device.

Of each level: rows ``qo_indptr[i] .. qo_indptr[i + 1]`` attend to the pages ``kv_indices[kv_indptr[i] ..
kv_indptr[i + 1]]``, the last of which holds ``last_page_len[i]`` tokens; results are merged by their log-sums of
exponentials, to base 2, and one without tokens has a log-sum of -inf. With ``use_cuda_graph`` the arrays are copied
into the given buffers, which is all that ``run`` then reads, and their number is fixed. What FlashInfer refuses, this
refuses.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class ReferenceWrapper:
    def __init__(
        self,
        num_levels: int,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf_arr: list[Tensor] | None = None,
        paged_kv_indptr_buf_arr: list[Tensor] | None = None,
        paged_kv_indices_buf_arr: list[Tensor] | None = None,
        paged_kv_last_page_len_buf_arr: list[Tensor] | None = None,
    ) -> None:
        assert kv_layout == "NHD"
        self.levels = num_levels
        self.plans = 0
        self.graph = use_cuda_graph
        self.buffers = (
            qo_indptr_buf_arr,
            paged_kv_indptr_buf_arr,
            paged_kv_indices_buf_arr,
            paged_kv_last_page_len_buf_arr,
        )
        if use_cuda_graph:
            queries, pages, _, last = self.buffers
            assert len(queries) == len(pages) == len(last) == num_levels
            for of_level in zip(queries, pages, last, strict=True):
                assert [len(buffer) for buffer in of_level] == [len(queries[0]), len(queries[0]), len(queries[0]) - 1]

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffers: list[Tensor]) -> None:
        assert len(int_workspace_buffers) == self.levels

    def plan(
        self,
        qo_indptr_arr: list[Tensor],
        paged_kv_indptr_arr: list[Tensor],
        paged_kv_indices_arr: list[Tensor],
        paged_kv_last_page_len: list[Tensor],
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: Any = "float16",
        kv_data_type: Any = None,
    ) -> None:
        arrays = (qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len)
        assert all(len(array) == self.levels for array in arrays)
        assert all(each.dtype == torch.int32 for array in arrays for each in array)
        assert (causal, window_left, logits_soft_cap, pos_encoding_mode) == (False, -1, None, "NONE")
        for queries, pages, indices, last in zip(*arrays, strict=True):
            assert queries[0] == pages[0] == 0
            assert len(queries) == len(pages) == len(last) + 1
            assert min(queries.diff().min(), pages.diff().min()) >= 0
            assert pages[-1] == len(indices)
            assert queries[-1] == qo_indptr_arr[-1][-1]
            # The length that the host side plans with, and the one that kernels take.
            planned = torch.clamp(pages.diff() - 1, min=0) * page_size + last
            assert torch.equal(planned, torch.where(pages.diff() > 0, (pages.diff() - 1) * page_size + last, 0))
        if self.graph:
            for given, buffers, whole in zip(arrays, self.buffers, (True, True, False, True), strict=True):
                for new, buffer in zip(given, buffers, strict=True):
                    assert len(new) == len(buffer) if whole else len(new) <= len(buffer)
                    buffer[: len(new)] = new
            arrays = self.buffers
        self.arrays = arrays
        self.heads, self.kv_heads, self.size, self.page = num_qo_heads, num_kv_heads, head_dim, page_size
        self.scale = sm_scale if sm_scale is not None else 1 / math.sqrt(head_dim)
        self.types = (q_data_type, kv_data_type)
        self.plans += 1

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        assert q.shape[1:] == (self.heads, self.size)
        assert q.dtype == self.types[0]
        cache = [each if each.ndim == 4 else each.unsqueeze(-3) for each in paged_kv_cache]
        assert all(each.shape[1:] == (self.page, self.kv_heads, self.size) for each in cache)
        output, log_sum = self._level(self.levels - 1, q, *cache)
        for level in range(self.levels - 1):
            other, other_sum = self._level(level, q, *cache)
            highest = torch.maximum(log_sum, other_sum)
            weight, other_weight = torch.exp2(log_sum - highest), torch.exp2(other_sum - highest)
            total = weight + other_weight
            output = (weight / total).unsqueeze(-1) * output + (other_weight / total).unsqueeze(-1) * other
            log_sum = torch.log2(total) + highest
        return output.to(q.dtype)

    def _level(self, level: int, q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        queries, pages, indices, last = (array[level].tolist() for array in self.arrays)
        output, log_sum = torch.zeros(q.shape), torch.full(q.shape[:2], -torch.inf)
        for i in range(len(last)):
            rows = slice(queries[i], queries[i + 1])
            used = torch.tensor(indices[pages[i] : pages[i + 1]], dtype=torch.long)
            if not len(used) or rows.start == rows.stop:
                continue
            length = (len(used) - 1) * self.page + last[i]
            k, v = (each[used].flatten(0, 1)[:length].float() for each in (keys, values))
            k, v = (each.repeat_interleave(self.heads // self.kv_heads, 1) for each in (k, v))
            logits = torch.einsum("qhd,khd->qhk", q[rows].float(), k) * self.scale
            log_sum[rows] = torch.logsumexp(logits, -1) / math.log(2)
            output[rows] = torch.einsum("qhk,khd->qhd", torch.softmax(logits, -1), v)
        return output, log_sum
