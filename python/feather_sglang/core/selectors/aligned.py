"""Aligned decode: rows of similar KV length decode together, while the others sit out (AlignedServe, arXiv 2605.23389).

A step that lasts as long as its longest row makes the short ones wait for it. What is shared out by row is what a step
costs whatever is in it, ``a``, and its longest row, ``f*L``: a batch is better than all rows together if
``(a + f*L) / B`` is smaller. Where a step costs the sum of its lengths ``f`` is zero, that never holds, and everybody
decodes.

The batch is the densest region of lengths (``lengths``), with at least so many rows: what is smaller is merged with its
neighbours, by going up in the tree. It holds at most so many KV tokens: what is larger is split, and the shortest go
first. Rows of its lengths take the places of those that end. It is chosen anew after ``RUN`` steps, when it is half
empty, and when somebody has sat out ``PATIENCE`` steps, who is then in the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feather_sglang.core.interface import Decode, Limits, Resident, Step, View
from feather_sglang.core.parking import arrange
from feather_sglang.core.selectors.cost import StepCost
from feather_sglang.core.selectors.lengths import around, densest

RUN = 64
"""Steps of one batch."""
PATIENCE = 256
"""Steps that a row may sit out before it is chosen whatever its length."""
GAIN = 0.1
"""By how much the shared part of a row must shrink, for rows to sit out."""


class Aligned:
    """:param rows: of a batch, at least.
    :param tokens: KV of a batch, at most.
    """

    name = "aligned"

    def __init__(self, rows: int, tokens: int) -> None:
        self.cost = StepCost()
        self.switches = self.steps = self.declined = 0
        """Batches chosen, steps with one, and those in which everybody decoded because it did not pay."""
        self.longest_wait = 0
        """Steps that a row sat out, at most."""
        self._rows = rows
        self._tokens = tokens
        self._members: set[int] = set()
        self._run = 0
        self._out: dict[int, int] = {}
        """Steps that each row has sat out since it decoded."""

    def select(self, view: View, limits: Limits) -> Decode | None:
        rows = view.residents
        self._out = {row.id: self._out.get(row.id, 0) for row in rows}
        if not self._choose(rows, limits):
            self._members = set()
            self._out = dict.fromkeys(self._out, 0)
            return None
        decode = arrange(rows, self._members, limits)
        self.steps += 1
        self._run += 1
        for id in self._out:
            self._out[id] += 1
        for id in decode.rows:
            self._out[id] = 0
        self.longest_wait = max(self.longest_wait, *self._out.values())
        return decode

    def observe(self, step: Step) -> None:
        self.cost.observe(step)

    def state(self) -> dict[str, Any]:
        return {
            "switches": self.switches,
            "aligned_steps": self.steps,
            "declined": self.declined,
            "longest_wait": self.longest_wait,
            "longest_costs": self.cost.cost.longest > 0,
            "cost": self.cost.cost._asdict(),
        }

    def _choose(self, rows: Sequence[Resident], limits: Limits) -> bool:
        """Go on with the batch, or have another; False: everybody decodes."""
        if len(rows) <= self._rows:
            return False
        waited = max(rows, key=lambda row: self._out[row.id])
        overdue = self._out[waited.id] >= PATIENCE
        members = [row for row in rows if row.id in self._members]
        if members and self._run < RUN and not overdue:
            members += self._like(members, rows)
            if 2 * len(members) > self._rows:
                self._members = {row.id for row in members}
                return True
        batch = self._batch(rows, waited if overdue else None)
        if not self._pays(batch, rows) and not (overdue and members):
            self.declined += 1
            return False
        hidden = limits.link_tokens * self.cost.cost.seconds(batch)
        if members and not overdue and sum(row.private for row in batch if row.parked) > hidden:
            return True  # bringing them back would take longer than the step beside it
        self._members = {row.id for row in batch}
        self._run = 0
        self.switches += 1
        return True

    def _like(self, members: Sequence[Resident], rows: Sequence[Resident]) -> list[Resident]:
        """Others of the lengths of these, oldest first, as far as there is room for them."""
        lengths = [row.length for row in members]
        low, high, room = min(lengths), max(lengths), self._tokens - sum(lengths)
        others = []
        for row in rows:
            if row.id not in self._members and low <= row.length <= high and row.length <= room:
                others.append(row)
                room -= row.length
        return others

    def _batch(self, rows: Sequence[Resident], waited: Resident | None) -> list[Resident]:
        """:param waited: somebody who is to be in it."""
        lengths = [row.length for row in rows]
        low, high = densest(lengths, self._rows) if waited is None else around(waited.length, lengths, self._rows)
        inside = [row for row in rows if low <= row.length <= high]
        if waited is not None:
            inside.sort(
                key=lambda row: (row is not waited, -self._out[row.id], abs(row.length - waited.length), row.id)
            )
        else:
            inside.sort(key=lambda row: (row.length, row.id))
        batch: list[Resident] = []
        room = self._tokens
        for row in inside:
            if batch and row.length > room:
                break
            batch.append(row)
            room -= row.length
        return batch

    def _pays(self, batch: Sequence[Resident], rows: Sequence[Resident]) -> bool:
        cost = self.cost.solve()
        if cost.longest <= 0 or len(batch) == len(rows):
            return False

        def share(some: Sequence[Resident]) -> float:
            return (cost.step + cost.longest * max(row.length for row in some)) / len(some)

        return share(batch) < (1 - GAIN) * share(rows)
