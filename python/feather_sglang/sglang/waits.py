"""How long requests waited, in all and by namespace, in bounded space and without naming what separates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NAMESPACES = 8
"""Namespaces that are reported one by one, those seen first; the others together as ``other``."""

RECENT = 60.0
"""Seconds that a longest wait is shown for, at least half of it."""


class RecentMax:
    """The largest of the values of the last half to whole minute."""

    def __init__(self) -> None:
        self._halves = (0.0, 0.0)
        self._began = 0.0

    def add(self, value: float, now: float) -> None:
        older, newer = self._at(now)
        self._halves = (older, max(newer, value))

    def value(self, now: float) -> float:
        return max(self._at(now))

    def _at(self, now: float) -> tuple[float, float]:
        passed = now - self._began
        if passed >= RECENT / 2:
            self._halves = (self._halves[1], 0.0) if passed < RECENT else (0.0, 0.0)
            self._began = now
        return self._halves


class Group:
    """The waits of one namespace."""

    def __init__(self) -> None:
        self.admitted = 0
        self.seconds = 0.0
        self.longest = RecentMax()

    def add(self, waits: Sequence[float], now: float) -> None:
        """:param waits: of those that were admitted together, at least one, in seconds."""
        self.admitted += len(waits)
        self.seconds += sum(waits)
        self.longest.add(max(waits), now)

    def state(self, now: float) -> dict[str, Any]:
        mean = self.seconds / self.admitted if self.admitted else 0.0
        return {"admitted": self.admitted, "mean_seconds": mean, "longest_seconds": self.longest.value(now)}


class Waits:
    """The waits of one scheduler."""

    def __init__(self) -> None:
        self.all = Group()
        self.namespaces: dict[str, Group] = {}
        """By the name they are shown under: ``default``, ``n1`` ... in order of appearance, ``other``."""
        self._names: dict[tuple[str | None, ...], str] = {}

    def add(self, namespace: tuple[str | None, ...], waits: Sequence[float], now: float) -> None:
        """:param namespace: see ``rows.namespace_of``; kept in memory, and never shown.
        :param waits: seconds of those of this namespace that were admitted together.
        """
        self.all.add(waits, now)
        name = self._names.get(namespace)
        if name is None:
            name = self._name(namespace)
        if name not in self.namespaces:
            self.namespaces[name] = Group()
        self.namespaces[name].add(waits, now)

    def _name(self, namespace: tuple[str | None, ...]) -> str:
        if not any(namespace):
            name = "default"
        elif len(self._names) < NAMESPACES:
            name = f"n{1 + sum(name != 'default' for name in self._names.values())}"
        else:
            return "other"
        self._names[namespace] = name
        return name

    def state(self, now: float) -> dict[str, Any]:
        spaces = {name: group.state(now) for name, group in self.namespaces.items()}
        return {**self.all.state(now), "namespaces": spaces}
