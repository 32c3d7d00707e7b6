"""The platform for SGLang 0.5.20 and 0.5.21, which have no default memory pools for a platform from outside."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from feather_sglang_cpu import platform


class CpuPlatform(platform.CpuPlatform):
    def get_mha_kv_pool_cls(self) -> type:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool  # imports much that needs a platform first

        return MHATokenToKVPool

    def get_paged_allocator_cls(self) -> type:
        return _TokenAllocator


class _TokenAllocator(TokenToKVPoolAllocator):
    """Token by token: the paged allocator of these versions is a Triton kernel."""

    def __init__(
        self, size: int, page_size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool
    ) -> None:
        """:raises ValueError: for a page size other than 1."""
        if page_size != 1:
            raise ValueError(
                f"page size {page_size} on the CPU needs SGLang 0.5.22 or later: leave out --page-size, or upgrade"
            )
        super().__init__(size, dtype, device, kvcache, need_sort)
