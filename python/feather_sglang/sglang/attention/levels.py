"""From a plan to the arrays of FlashInfer's cascade: which rows read which KV slots, level by level.

At every level the rows of the batch fall into segments of neighbours, and a segment reads one run of KV: what a group
shares, or nothing, for rows that share nothing there. At the last level every row reads its own tail. (FlashInfer,
"cascade inference data layout", with pages of one token, as SGLang's ``req_to_token`` has them.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from feather_sglang.core.sharing import Sharing


class Segment(NamedTuple):
    """Rows ``first .. last`` of the batch read tokens ``start .. end``, from the slots of the first of them."""

    first: int
    last: int
    start: int
    end: int


class Arrays(NamedTuple):
    """What ``MultiLevelCascadeAttentionWrapper.plan`` takes first: one tensor for each level, int32.

    All but the slots are in host memory, where FlashInfer plans: it would fetch them from the device otherwise.
    """

    qo_indptr: list[Tensor]
    kv_indptr: list[Tensor]
    kv_indices: list[Tensor]
    last_page_len: list[Tensor]


def levels_of(plan: Sharing, lengths: Sequence[int]) -> list[list[Segment]]:
    """The segments of each level.

    :param plan: of a batch whose groups are neighbours.
    :param lengths: KV tokens of each row; rows behind those of the plan (padding) share nothing.
    :raises ValueError: if the rows of a group are not neighbours.
    """
    levels = [_segments(plan, level, len(lengths)) for level in range(plan.levels)]
    tails = [*plan.tails, *[0] * (len(lengths) - len(plan.tails))]
    ends = enumerate(zip(tails, lengths, strict=True))
    return [*levels, [Segment(row, row + 1, start, end) for row, (start, end) in ends]]


def _segments(plan: Sharing, level: int, rows: int) -> list[Segment]:
    segments: list[Segment] = []
    done = 0
    for each in sorted((each for each in plan.ranges if each.level == level), key=lambda each: each.rows):
        if not each.adjacent:
            raise ValueError(f"rows {each.rows} share KV but are not neighbours: FlashInfer reads neighbours only")
        first, last = each.rows[0], each.rows[-1] + 1
        if done < first:
            segments.append(Segment(done, first, 0, 0))
        segments.append(Segment(first, last, each.start, each.end))
        done = last
    if done < rows:
        segments.append(Segment(done, rows, 0, 0))
    return segments


def padded(segments: Sequence[Segment], count: int) -> list[Segment]:
    """``count`` segments, the last of them without rows and KV: a captured graph wants the same number every time."""
    rows = segments[-1].last
    return [*segments, *[Segment(rows, rows, 0, 0)] * (count - len(segments))]


def arrays_of(levels: Sequence[Sequence[Segment]], table: Tensor, rows: Tensor) -> Arrays:
    """The arrays of some levels.

    :param table: [rows, tokens] of SGLang's ``req_to_token``.
    :param rows: [batch] the row of the table that each row of the batch has.
    """
    arrays = Arrays([], [], [], [])
    for segments in levels:
        counts = [segment.end - segment.start for segment in segments]
        arrays.qo_indptr.append(_int32([0, *(segment.last for segment in segments)]))
        arrays.kv_indptr.append(_int32([0, *accumulate(counts)]))
        arrays.kv_indices.append(_slots(segments, counts, table, rows))
        # FlashInfer's host side counts (pages - 1, at least 0) whole pages and the last one, of an empty segment, too.
        arrays.last_page_len.append(_int32([min(count, 1) for count in counts]))
    return arrays


def _slots(segments: Sequence[Segment], counts: Sequence[int], table: Tensor, rows: Tensor) -> Tensor:
    """[tokens of all segments], on the table's device: one copy to it, and no wait for it."""
    read = [(segment.first, segment.start, count) for segment, count in zip(segments, counts, strict=True) if count]
    if not read:
        return torch.empty(0, dtype=torch.int32, device=table.device)
    total = sum(counts)
    known = torch.tensor([*zip(*read, strict=True), [0, *accumulate(count for *_, count in read[:-1])]])
    first, start, count, before = known.to(table.device, non_blocking=True)
    segment_of = torch.repeat_interleave(torch.arange(len(read), device=table.device), count, output_size=total)
    column = torch.arange(total, device=table.device) - before[segment_of] + start[segment_of]
    return table[rows[first][segment_of], column].to(torch.int32)


def _int32(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
