"""The backend on the CPU: PyTorch's own attention, once for what rows share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch import Tensor

from feather_sglang.core.sharing import Costs
from feather_sglang.sglang.attention.layout import Layout, LayoutMaker, prefix_of
from feather_sglang.sglang.attention.source import PlanSource
from feather_sglang.sglang.attention.steps import attend_decode, attend_extend
from feather_sglang.sglang.attention.support import check_model, refuse

_BANDWIDTH, _CALL, _ROW = 13e9, 60e-6, 4e-6
"""Bytes a second that a row of its own reads KV with, seconds of a call, and of a row in it (its joining): a core of an
AMD EPYC with AVX-512. That they are right within a factor of two is enough: a range saves far more, or far less."""

_INSTEAD = "Give --attention-backend torch_native."


class CascadeCpuBackend(TorchNativeAttnBackend):
    """Decode: what rows share is one call for all of them, what a row has alone in one run is read in place, and the
    short rest is one padded call for the batch. Extend: new tokens attend to what is cached, and to each other.

    :param sharing: ``on``, ``off`` or ``auto``.
    :raises UnsupportedError: for a model that it cannot serve.
    """

    def __init__(self, runner: Any, sharing: str) -> None:
        super().__init__(runner)
        check_model(runner, _INSTEAD)
        pool = self.token_to_kv_pool
        key = pool.get_key_buffer(pool.start_layer)
        if key.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            refuse(f"a KV cache of {key.dtype} on the CPU", "Leave out --kv-cache-dtype.")
        kv_bytes = 2 * key.shape[1] * key.shape[2] * key.element_size()
        costs = Costs.of(kv_bytes=kv_bytes, bandwidth=_BANDWIDTH, range=_CALL, row=_ROW)
        self.plans = PlanSource(self.req_to_token_pool, sharing, costs)
        self._table: np.ndarray[Any, Any] = self.req_to_token_pool.req_to_token.numpy()
        self._maker = LayoutMaker(self._table, runner.dtype)
        self._decode: Layout | None = None
        self._extend: list[list[slice | Tensor]] = []
        """By row of the batch: the slots of its cached prefix."""

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Once a step."""
        super().init_forward_metadata(forward_batch)
        mode = forward_batch.forward_mode
        rows = forward_batch.req_pool_indices.numpy()
        if mode.is_decode():
            lengths = forward_batch.seq_lens.numpy()
            plan = self.plans.plan(forward_batch, lengths.tolist())
            self._decode = self._maker.layout(plan, rows, lengths)
        elif mode.is_extend():
            self._extend = [
                prefix_of(self._table[row, :length])
                for row, length in zip(rows.tolist(), forward_batch.extend_prefix_lens_cpu, strict=True)
            ]

    def forward_decode(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Tensor:
        """[rows, query heads x size] of the same."""
        self._save(k, v, layer, forward_batch, save_kv_cache)
        assert self._decode is not None
        query = q.reshape(-1, layer.tp_k_head_num, layer.tp_q_head_num // layer.tp_k_head_num, layer.qk_head_dim)
        return attend_decode(query, *self._buffers(layer), self._decode, layer.scaling).flatten(1)

    def forward_extend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Tensor:
        """[new tokens, query heads x size] of the same."""
        self._save(k, v, layer, forward_batch, save_kv_cache)
        keys, values = self._buffers(layer)
        if k is None:  # a layer that uses the keys and values of another
            k, v = keys[forward_batch.out_cache_loc], values[forward_batch.out_cache_loc]
        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        k, v = (new.reshape(-1, layer.tp_k_head_num, layer.qk_head_dim) for new in (k, v))
        causal = layer.attn_type == AttentionType.DECODER
        outputs = []
        start = 0
        for length, prefix in zip(forward_batch.extend_seq_lens_cpu, self._extend, strict=True):
            new = slice(start, start + length)
            outputs.append(attend_extend(queries[new], k[new], v[new], keys, values, prefix, layer.scaling, causal))
            start += length
        return torch.cat(outputs).reshape(start, -1)

    def _save(self, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool) -> None:
        if save_kv_cache and k is not None:
            where = KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, where, k, v)

    def _buffers(self, layer: Any) -> tuple[Tensor, Tensor]:
        """[slots, KV heads, size] of keys and of values."""
        pool = self.token_to_kv_pool
        return pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
