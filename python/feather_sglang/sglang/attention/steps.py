"""One layer of a decode step, and of a prefill, on the CPU. Heads are grouped: [KV heads, query heads of each]."""

from __future__ import annotations

import torch
from torch import Tensor

from feather_sglang.sglang.attention.kernels import attend, merge
from feather_sglang.sglang.attention.layout import Layout


def attend_decode(query: Tensor, keys: Tensor, values: Tensor, layout: Layout, scale: float) -> Tensor:
    """Attention of the last token of every row.

    :param query: [rows, KV heads, heads of each, size]; the result is of the same shape.
    :param keys: [slots, KV heads, size], as ``values``.
    """
    rows, kv_heads, _, size = query.shape
    tail = (buffer.index_select(0, layout.tail_slots).view(rows, -1, kv_heads, size) for buffer in (keys, values))
    k, v = (each.transpose(1, 2) for each in tail)
    output, lse = attend(query, k, v, scale, mask=layout.tail_mask)
    if not layout.parts:
        return output
    outputs = torch.zeros(layout.places, *query.shape)
    lses = torch.full((layout.places, *lse.shape), -torch.inf)
    outputs[0], lses[0] = output, lse
    for part in layout.parts:
        k, v = _at(keys, part.slots), _at(values, part.slots)
        if part.members == 1:
            output, lse = attend(query[part.rows], k, v, scale)
        else:  # the queries of all its rows, head by head
            packed = query[part.rows].transpose(0, 1).reshape(1, kv_heads, -1, size)
            output, lse = attend(packed, k, v, scale)
            output = output.view(kv_heads, part.members, -1, size).transpose(0, 1)
            lse = lse.view(kv_heads, part.members, -1).transpose(0, 1)
        outputs[part.place, part.rows], lses[part.place, part.rows] = output.float(), lse
    return merge(outputs, lses).to(query.dtype)


def attend_extend(
    query: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    prefix: list[slice | Tensor],
    scale: float,
    causal: bool,
) -> Tensor:
    """Attention of the new tokens of one request, [new, heads, size], to its prefix and to each other."""
    length, heads, size = query.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    k, v = (each.repeat_interleave(group, 1).transpose(0, 1).unsqueeze(0) for each in (k, v))
    output, lse = attend(query.transpose(0, 1).unsqueeze(0), k, v, scale, causal=causal and length > 1)
    if not prefix:
        return output[0].transpose(0, 1)
    packed = query.view(length, kv_heads, group, size).transpose(0, 1).reshape(1, kv_heads, -1, size)
    outputs, lses = [output[0].float()], [lse[0]]
    for slots in prefix:
        output, lse = attend(packed, _at(keys, slots), _at(values, slots), scale)
        outputs.append(output.view(kv_heads, length, group, size).transpose(1, 2).reshape(heads, length, size).float())
        lses.append(lse.view(kv_heads, length, group).transpose(1, 2).reshape(heads, length))
    return merge(torch.stack(outputs), torch.stack(lses)).transpose(0, 1).to(query.dtype)


def _at(buffer: Tensor, slots: slice | Tensor) -> Tensor:
    """[1, KV heads, tokens, size] of some slots."""
    return (buffer[slots] if isinstance(slots, slice) else buffer.index_select(0, slots)).transpose(0, 1).unsqueeze(0)
