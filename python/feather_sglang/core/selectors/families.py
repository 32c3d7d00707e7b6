"""One prefix family decodes for a while, then the next: for measuring what alternating brings, or costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feather_sglang.core.interface import Decode, Limits, Step, View
from feather_sglang.core.parking import arrange

TURN = 16
"""Decode steps of a family before the next one."""


class Families:
    name = "families"

    def __init__(self) -> None:
        self._left = 0
        self._family: frozenset[int] = frozenset()
        self._turns: dict[int, int] = {}
        """When the family of a row had its last turn, by id."""
        self._turn = 0

    def select(self, view: View, limits: Limits) -> Decode | None:
        alive = {row.id for row in view.residents}
        self._turns = {id: turn for id, turn in self._turns.items() if id in alive}
        self._left -= 1
        if self._left < 0 or not self._family & alive:
            families = _families(view.order, view.shared)
            if len(families) < 2:
                self._family = frozenset()
                return None
            self._turn += 1
            self._left = TURN - 1
            self._family = min(families, key=lambda family: (max(self._turns.get(id, 0) for id in family), min(family)))
            self._turns |= dict.fromkeys(self._family, self._turn)
        return arrange(view.residents, self._family, limits)

    def observe(self, step: Step) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {"turns": self._turn}


def _families(order: Sequence[int], shared: Sequence[int]) -> list[frozenset[int]]:
    """Rows that share something with a neighbour, together."""
    families: list[set[int]] = []
    for id, common in zip(order, shared, strict=True):
        if common and families:
            families[-1].add(id)
        else:
            families.append({id})
    return [frozenset(family) for family in families]
