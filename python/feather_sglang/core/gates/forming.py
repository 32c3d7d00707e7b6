"""A batch while candidates join it: what it holds, and what competes for the cache between two reads of a prefix."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from feather_sglang.core.interface import Candidate, Step, View


class Forming:
    """Begins as the running batch. O(rows) to make, O(families) for a candidate at worst.

    Families are read off the order of the rows: neighbours that have equally many tokens in common are one. What
    competes is the prefix of one family times the effective number of families, (sum of n)^2 / (sum of n^2) for
    families of n rows: a stranger in a batch of a hundred does not halve the cache.
    """

    def __init__(self, view: View) -> None:
        self.rows = len(view.order)
        self.shared = 0
        """Distinct tokens of prefixes that two rows or more hold."""
        self.groups = 0
        """Families that run, of two rows or more."""
        self._holdings = self._squares = self._relatives = 0
        self._members: dict[int, int] = {}
        """By the length of the prefix: rows of the largest family, or of the one that was opened last."""
        last = 0
        for prefix, run in groupby(view.shared):
            if prefix:
                members = 1 + sum(1 for _ in run)
                self.shared += max(prefix - last, 0)
                self.groups += 1
                self._relatives += members
                self._holdings += prefix * members
                self._squares += prefix * members * members
                self._members[prefix] = max(members, self._members.get(prefix, 0))
            last = prefix

    @property
    def competing(self) -> float:
        """KV tokens."""
        return self._holdings * self._holdings / self._squares if self._squares else 0.0

    @property
    def families(self) -> float:
        """Their effective number; 0: no two rows share."""
        return self.competing * self._relatives / self._holdings if self._holdings else 0.0

    def add(self, candidates: Sequence[Candidate]) -> Forming:
        """These join, one after the other."""
        for candidate in candidates:
            self.rows += 1
            prefix = candidate.add_total - candidate.add_distinct
            if prefix:
                members = self._members.get(prefix, 1)
                if members == 1:  # its sibling counted as a stranger so far
                    self.shared += prefix
                    self._relatives += 1
                    self._holdings += prefix
                    self._squares += prefix
                self._members[prefix] = members + 1
                self._relatives += 1
                self._holdings += prefix
                self._squares += prefix * (2 * members + 1)
            if candidate.add_distinct > prefix:
                # A stranger: those behind it that share as much as it brought are its siblings, not another's.
                for length in self._members:
                    if prefix < length <= candidate.add_distinct:
                        self._members[length] = 1
        return self

    @property
    def strangers(self) -> int:
        """Rows that share with no other."""
        return self.rows - self._relatives

    def opens(self, candidate: Candidate) -> bool:
        """Whether it would bring another prefix, as long as those that are there or half as long, beside them."""
        brought = candidate.add_distinct
        shared = candidate.add_total - brought
        return brought > shared and 2 * brought * self._relatives > self._holdings > 0


class Batch(NamedTuple):
    """One that was formed: what ``Forming`` knew of it."""

    step: int = 0
    rows: int = 0
    shared: int = 0
    competing: float = 0.0
    families: float = 0.0


class Formed:
    """The batches formed last, as steps become known later."""

    LATEST = 8
    """Batches formed until a step among which the one that ran in it is looked for."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque([Batch()], maxlen=256)

    def add(self, step: int, batch: Forming) -> None:
        """What ``step`` would run."""
        self._batches.append(Batch(step, batch.rows, batch.shared, batch.competing, batch.families))

    def batch_of(self, step: Step) -> Batch:
        """The batch that ran in a step: of those formed last until then, the one with as many rows, or the last."""
        batches = self._batches
        while len(batches) > self.LATEST and batches[self.LATEST].step <= step.seq:
            batches.popleft()
        until = [batch for batch in batches if batch.step <= step.seq] or [batches[0]]
        return next((batch for batch in reversed(until) if batch.rows == step.requests), until[-1])
