"""The platform as SGLang sees it: its CPU device, with PyTorch's attention and no kernels of SGLang's own."""

from __future__ import annotations

from typing import Any

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from feather_sglang_cpu.linear import use_onednn
from feather_sglang_cpu.pinning import ignore_pinning


class CpuPlatform(CpuDeviceMixin, SRTPlatform):
    """Out-of-tree, so that SGLang takes its device-neutral paths instead of those built for sgl_kernel's CPU build."""

    _enum = PlatformEnum.OOT

    def get_default_attention_backend(self) -> str:
        return "torch_native"

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return False

    def apply_server_args_defaults(self, server_args: Any) -> None:
        if server_args.lora_backend == "csgmv":  # SGLang's default, of Triton kernels
            server_args.lora_backend = "torch_native"

    def init_backend(self) -> None:
        """Called once in each worker, before it builds a model."""
        ignore_pinning()
        use_onednn()
