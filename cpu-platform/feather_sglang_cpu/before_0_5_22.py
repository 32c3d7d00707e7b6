"""The platform for SGLang 0.5.20 and 0.5.21, which have no default memory pools for a platform from outside."""

from __future__ import annotations

from feather_sglang_cpu import platform


class CpuPlatform(platform.CpuPlatform):
    # Imported when asked for: what the pools need is itself imported while the platform is being chosen.

    def get_mha_kv_pool_cls(self) -> type:
        from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

        return MHATokenToKVPool

    def get_paged_allocator_cls(self) -> type:
        from feather_sglang_cpu.token_allocator import TokenAllocator

        return TokenAllocator
