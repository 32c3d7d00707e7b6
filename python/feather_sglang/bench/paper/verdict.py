"""What an experiment says of a claim, worked out from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

HOLDS, PARTLY, FAILS = "holds", "holds in part", "does not hold"


class Part(NamedTuple):
    """Ratios that the claim wants to be large enough."""

    what: str
    ratios: list[float]
    least: float

    @property
    def reached(self) -> int:
        return sum(ratio >= self.least for ratio in self.ratios)

    def said(self) -> str:
        low, high = min(self.ratios), max(self.ratios)
        return f"{self.what}: {low:.3g} to {high:.3g}, {self.reached} of {len(self.ratios)} at {self.least:g} or more"


class Verdict(NamedTuple):
    """:param outcome: ``holds``, ``holds in part`` or ``does not hold``."""

    outcome: str
    parts: list[Part]
    """What was asked."""
    beside: list[Part]
    """What was not, and throws light on it."""

    def lines(self) -> list[str]:
        return [part.said() for part in self.parts] + [f"(beside it) {part.said()}" for part in self.beside]


def verdict(asked: Sequence[Part], beside: Sequence[Part] = ()) -> Verdict:
    """It holds if every ratio of every part reaches what is asked of it, in part if some do, and else not."""
    reached, ratios = sum(part.reached for part in asked), sum(len(part.ratios) for part in asked)
    return Verdict(FAILS if not reached else HOLDS if reached == ratios else PARTLY, list(asked), list(beside))
