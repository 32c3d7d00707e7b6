"""Pinned host memory where there is no device to copy it to.

SGLang asks for it with a literal ``pin_memory=True`` in some sixty places (LoRA, the overlap scheduler's buffers, log
probabilities); PyTorch then wants an NVIDIA driver. Pinning changes no value, only how fast a copy to a device is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_FACTORIES = ("arange", "empty", "empty_like", "full", "ones", "tensor", "zeros", "zeros_like")


def ignore_pinning() -> None:
    """Have this process' tensor factories and ``Tensor.pin_memory`` give ordinary memory; a second call is harmless."""
    for name in _FACTORIES:
        factory = getattr(torch, name)
        if not hasattr(factory, "__wrapped__"):
            setattr(torch, name, _unpinned(factory))
    torch.Tensor.pin_memory = _as_it_is


def _unpinned(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "pin_memory" in kwargs:
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return create


def _as_it_is(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
    return tensor
