"""From a plan and the KV slots of its rows to the attention calls of a decode step on the CPU.

What a range or a long private stretch holds in consecutive slots is read in place; the short rest of all rows is one
padded call. The calls depend on slots, which SGLang may change under a row (it is given out again; its cache puts equal
slots in place of the row's own), so what is kept of a row is compared with its slots at every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from feather_sglang.core.sharing import Sharing

Slots = np.ndarray[Any, Any]

RUN = 128
"""Consecutive slots that are worth a call of their own, without a copy."""
TAIL = 256
"""Tokens of a row that go into the padded call at most."""


class Part(NamedTuple):
    """One attention call: some rows, and the KV slots that they read."""

    rows: slice | torch.Tensor
    members: int
    slots: slice | torch.Tensor
    """A slice is read in place."""


class Layout(NamedTuple):
    """The calls of one decode step, the same for every layer."""

    parts: list[Part]
    tail_slots: torch.Tensor
    """[rows x longest], padded with slot 0."""
    tail_mask: torch.Tensor | None
    """[rows, 1, 1, longest]: 0, or -inf for padding; None: nothing is padded."""


class _Private(NamedTuple):
    """What a row reads alone, but its tail: tokens ``start .. end``."""

    start: int
    end: int
    slots: Slots
    pieces: list[slice | torch.Tensor]


class LayoutMaker:
    """Makes the layout of every step, of what it knows from the step before.

    :param table: [rows, tokens] of SGLang's ``req_to_token``, as NumPy sees it.
    :ivar made: layouts whose calls were worked out anew; the others only had longer tails.
    """

    def __init__(self, table: Slots, dtype: torch.dtype) -> None:
        self.made = 0
        self._table = table
        self._dtype = dtype
        self._plan: Sharing | None = None
        self._private: dict[int, _Private] = {}
        self._shared: list[Slots] = []
        self._parts: list[Part] = []

    def layout(self, plan: Sharing, rows: Slots, lengths: Slots) -> Layout:
        """:param rows: [rows] of ``table``.
        :param lengths: [rows] KV tokens.
        """
        private = [self._private_of(*of) for of in zip(rows.tolist(), plan.tails, lengths.tolist(), strict=True)]
        same = len(private) == len(self._private) and all(
            new is old for new, old in zip(private, self._private.values(), strict=True)
        )
        if not same or plan != self._plan or not self._holds(plan, rows):
            self.made += 1
            self._plan = plan
            self._private = dict(zip(rows.tolist(), private, strict=True))
            self._shared = [self._table[rows[each.rows[0]], each.start : each.end].copy() for each in plan.ranges]
            self._parts = self._parts_of(plan, private)
        starts = np.fromiter((each.end for each in private), np.int64, len(private))
        return Layout(self._parts, *self._tail(rows, starts, lengths))

    def _private_of(self, row: int, start: int, length: int) -> _Private:
        known = self._private.get(row)
        if (
            known is not None
            and known.start == start
            and known.end < length <= known.end + TAIL
            and np.array_equal(self._table[row, start : known.end], known.slots)
        ):
            return known
        slots = self._table[row, start : length - 1]  # one token at least is left to the tail
        pieces, end = pieces_of(slots)
        return _Private(start, start + end, slots[:end].copy(), pieces)

    def _holds(self, plan: Sharing, rows: Slots) -> bool:
        """Whether the rows of every range still hold the slots that its calls read."""
        return all(
            np.array_equal(self._table[rows[each.rows[0]], each.start : each.end], slots)
            for each, slots in zip(plan.ranges, self._shared, strict=True)
        )

    def _parts_of(self, plan: Sharing, private: list[_Private]) -> list[Part]:
        parts: list[Part] = []
        for each, slots in zip(plan.ranges, self._shared, strict=True):
            rows: slice | torch.Tensor = (
                slice(each.rows[0], each.rows[-1] + 1) if each.adjacent else torch.tensor(each.rows)
            )
            pieces, end = pieces_of(slots)
            if end < len(slots):
                pieces = [*pieces, torch.from_numpy(slots[end:].astype(np.int64))]
            parts += [Part(rows, len(each.rows), piece) for piece in pieces]
        parts += [Part(slice(i, i + 1), 1, piece) for i, row in enumerate(private) for piece in row.pieces]
        return parts

    def _tail(self, rows: Slots, starts: Slots, lengths: Slots) -> tuple[torch.Tensor, torch.Tensor | None]:
        longest = int((lengths - starts).max())
        columns = starts[:, None] + np.arange(longest)
        inside = columns < lengths[:, None]
        slots = np.where(inside, self._table[rows[:, None], np.minimum(columns, lengths[:, None] - 1)], 0)
        mask = None
        if not inside.all():
            mask = torch.zeros(len(rows), 1, 1, longest, dtype=self._dtype)
            mask.masked_fill_(~torch.from_numpy(inside)[:, None, None], float("-inf"))
        return torch.from_numpy(slots.astype(np.int64).reshape(-1)), mask


def pieces_of(slots: Slots) -> tuple[list[slice | torch.Tensor], int]:
    """What of some slots to read by calls of their own, and where the rest begins, which is shorter than ``TAIL``.

    A long run of consecutive slots is a slice. What lies between is gathered.
    """
    ends = [*(np.flatnonzero(np.diff(slots) != 1) + 1).tolist(), len(slots)]
    pieces: list[slice | torch.Tensor] = []
    rest = start = 0
    for end in ends:
        if end - start >= RUN:
            if rest < start:
                pieces.append(torch.from_numpy(slots[rest:start].astype(np.int64)))
            pieces.append(slice(int(slots[start]), int(slots[end - 1]) + 1))
            rest = end
        start = end
    if len(slots) - rest >= TAIL:
        pieces.append(torch.from_numpy(slots[rest:].astype(np.int64)))
        rest = len(slots)
    return pieces, rest


def prefix_of(slots: Slots) -> list[slice | torch.Tensor]:
    """Where to read a cached prefix: long runs in place, the rest gathered."""
    pieces, rest = pieces_of(slots)
    return pieces if rest == len(slots) else [*pieces, torch.from_numpy(slots[rest:].astype(np.int64))]
