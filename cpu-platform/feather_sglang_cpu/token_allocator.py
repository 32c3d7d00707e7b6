"""The KV allocator for SGLang 0.5.20 and 0.5.21, whose paged one is a Triton kernel."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator


class TokenAllocator(TokenToKVPoolAllocator):
    """SGLang's allocator of single tokens, built like its paged one."""

    def __init__(
        self, size: int, page_size: int, dtype: torch.dtype, device: str, kvcache: Any, need_sort: bool
    ) -> None:
        """:raises ValueError: for a page size other than 1."""
        if page_size != 1:
            raise ValueError(
                f"page size {page_size} on the CPU needs SGLang 0.5.22 or later: leave out --page-size, or upgrade"
            )
        super().__init__(size, dtype, device, kvcache, need_sort)
