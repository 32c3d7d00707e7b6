"""Linear layers in float32 by oneDNN: PyTorch gives them to MKL, which is slower, most of all on a few rows.

Weights are read as SGLang holds them, so that updating them needs nothing here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def use_onednn() -> None:
    """Have it run this process' unquantised linear layers and heads, where it can; a second call is harmless."""
    from sglang.srt.layers.logits_processor import LogitsProcessor
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    if not torch.backends.mkldnn.is_available() or hasattr(UnquantizedLinearMethod.apply, "__wrapped__"):
        return
    UnquantizedLinearMethod.apply = _linear(UnquantizedLinearMethod.apply)
    LogitsProcessor._compute_lm_head = _head(LogitsProcessor._compute_lm_head)


def _linear(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def apply(self: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return _product(x, layer.weight, bias) if _fits(x, layer.weight) else original(self, layer, x, bias)

    return apply


def _head(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(original)
    def logits(self: Any, hidden: torch.Tensor, head: Any, *args: Any, **named: Any) -> torch.Tensor:
        # Neither quantised nor with LoRA, and no reinforcement learning, which wants the rounding of its trainer.
        plain = type(getattr(head, "quant_method", None)).__name__ == "UnquantizedEmbeddingMethod"
        if plain and self.rl_on_policy_target is None and _fits(hidden, head.weight):
            return _product(hidden, head.weight, None)
        return original(self, hidden, head, *args, **named)

    return logits


def _fits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    # A subclass of Tensor is another library's, and does its own products.
    return x.dtype == weight.dtype == torch.float32 and type(weight.data) is torch.Tensor


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
