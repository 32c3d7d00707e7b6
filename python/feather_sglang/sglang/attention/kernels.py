"""Attention on the CPU that also gives the logarithm of its normaliser, so that partial results can be joined."""

from __future__ import annotations

import torch
from torch import Tensor

_flash = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def attend(
    query: Tensor, key: Tensor, value: Tensor, scale: float, *, mask: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention of [batch, heads, queries, size] to [batch, heads, tokens, size].

    :param mask: added to the logits, broadcast to [batch, heads, queries, tokens].
    :param causal: query i sees tokens 0 .. i; there are as many of one as of the other.
    :returns: the output [batch, heads, queries, size], and log Σ exp(logits) [batch, heads, queries], float32.
    """
    if _flash is None:  # it is private to PyTorch
        return attend_by_products(query, key, value, scale, mask=mask, causal=causal)
    output, lse = _flash(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
    return output, lse


def attend_by_products(
    query: Tensor, key: Tensor, value: Tensor, scale: float, *, mask: Tensor | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """The same by two matrix products."""
    logits = torch.matmul(query, key.transpose(-1, -2)).float().mul_(scale)
    if mask is not None:
        logits += mask
    if causal:
        ahead = torch.ones(logits.shape[-2:], dtype=torch.bool).triu_(1)
        logits.masked_fill_(ahead, float("-inf"))
    lse = torch.logsumexp(logits, -1)
    weights = (logits - lse.unsqueeze(-1)).exp_().to(value.dtype)
    return torch.matmul(weights, value), lse


def join(output: Tensor, lse: Tensor, more: Tensor, more_lse: Tensor) -> None:
    """Add to a partial result, in place, another one over other tokens.

    :param output: [..., size] float32, as ``more``; ``lse``: [...], as ``more_lse``. At least one of the two parts has
        tokens: a part without any has a log-sum of -inf, and any finite output.
    """
    output.lerp_(more, torch.sigmoid(more_lse - lse).unsqueeze(-1))
    torch.logaddexp(lse, more_lse, out=lse)
