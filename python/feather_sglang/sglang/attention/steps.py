"""One layer of a decode step, and of a prefill, on the CPU. Heads are grouped: [KV heads, query heads of each]."""

from __future__ import annotations

from torch import Tensor

from feather_sglang.sglang.attention.kernels import attend, join
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
    output = output.float()
    for part in layout.parts:
        k, v = _at(keys, part.slots), _at(values, part.slots)
        if part.members == 1:
            more, more_lse = attend(query[part.rows], k, v, scale)
        else:  # the queries of all its rows, head by head
            packed = query[part.rows].transpose(0, 1).reshape(1, kv_heads, -1, size)
            more, more_lse = attend(packed, k, v, scale)
            more = more.view(kv_heads, part.members, -1, size).transpose(0, 1)
            more_lse = more_lse.view(kv_heads, part.members, -1).transpose(0, 1)
        of_rows, lse_of_rows = output[part.rows], lse[part.rows]
        join(of_rows, lse_of_rows, more.float(), more_lse)
        if not isinstance(part.rows, slice):  # then they were copies
            output[part.rows], lse[part.rows] = of_rows, lse_of_rows
    return output.to(query.dtype)


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
    output, lse = output[0].float(), lse[0]
    for slots in prefix:
        more, more_lse = attend(packed, _at(keys, slots), _at(values, slots), scale)
        more = more.view(kv_heads, length, group, size).transpose(1, 2).reshape(heads, length, size)
        more_lse = more_lse.view(kv_heads, length, group).transpose(1, 2).reshape(heads, length)
        join(output, lse, more.float(), more_lse)
    return output.transpose(0, 1).to(query.dtype)


def _at(buffer: Tensor, slots: slice | Tensor) -> Tensor:
    """[1, KV heads, tokens, size] of some slots."""
    return (buffer[slots] if isinstance(slots, slice) else buffer.index_select(0, slots)).transpose(0, 1).unsqueeze(0)
