"""The KV pool and prefix cache of the simulated engine: which chunks rows hold, which are cached, what is free."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Container, Sequence


class Pool:
    """Counts tokens; holds none. A *level* is the cumulative hash of a prompt's chunks up to one, as in the index.

    :param capacity: KV tokens.
    :param level_tokens: tokens of a chunk.
    """

    def __init__(self, capacity: int, level_tokens: int) -> None:
        self.capacity = capacity
        self.level_tokens = level_tokens
        self.private = 0
        """Tokens of rows beyond their levels, output included."""
        self.reserved = 0
        """Tokens that rows will still write."""
        self.computed = 0
        """Prompt tokens that were prefilled so far."""
        self.shared_levels = 0
        """Levels that two rows or more hold."""
        self.holdings = 0
        """Sum over levels of the rows that hold it, and of its square: see ``reuse_distance``."""
        self.squares = 0
        self._rows: dict[int, int] = {}
        self._published: dict[int, int] = {}
        self._publications = 0
        self._unheld: OrderedDict[int, None] = OrderedDict()

    @property
    def distinct_kv(self) -> int:
        """Tokens that rows hold, shared ones counted once."""
        return len(self._rows) * self.level_tokens + self.private

    @property
    def total_kv(self) -> int:
        """The same, shared ones counted for each row."""
        return self.holdings * self.level_tokens + self.private

    @property
    def shared_kv(self) -> int:
        """Tokens that two rows or more hold, counted once."""
        return self.shared_levels * self.level_tokens

    @property
    def free(self) -> int:
        """Tokens that an admission may take: neither held nor reserved; what is cached for nobody is evicted."""
        return self.capacity - self.distinct_kv - self.reserved

    def reuse_distance(self) -> float:
        """KV tokens that pass between two reads of a shared token, if the rows of a batch are interleaved at random.

        G families of n rows with P shared and S private tokens each: G * (P + S). Where families differ in size, G is
        the effective number (the square of the sum of n over the sum of their squares): one stranger in a batch of a
        hundred passes once in a hundred rows.
        """
        if not self.squares:
            return 0.0
        effective = self.holdings * self.holdings / self.squares * self.level_tokens
        return effective * self.total_kv / (self.holdings * self.level_tokens)

    def match(self, levels: Sequence[int]) -> int:
        """How many leading levels are cached or held, and published."""
        return leading(levels, self._published)

    def held(self, levels: Sequence[int]) -> int:
        """How many leading levels rows hold, published or not."""
        return leading(levels, self._rows)

    def published_as(self, level: int) -> int:
        """The number of a published level, in the order in which they were published."""
        return self._published[level]

    def hold(self, levels: Sequence[int]) -> None:
        """A row holds these."""
        rows = self._rows
        for level in levels:
            n = rows.get(level, 0)
            rows[level] = n + 1
            self.squares += 2 * n + 1
            if n == 0:
                self._unheld.pop(level, None)
            elif n == 1:
                self.shared_levels += 1
        self.holdings += len(levels)

    def release(self, levels: Sequence[int]) -> None:
        """A row holds them no longer. The published ones stay cached, deepest first to go."""
        rows = self._rows
        for level in reversed(levels):
            n = rows[level] - 1
            self.squares -= 2 * n + 1
            if n:
                rows[level] = n
                if n == 1:
                    self.shared_levels -= 1
            else:
                del rows[level]
                if level in self._published:
                    self._unheld[level] = None
        self.holdings -= len(levels)

    def publish(self, levels: Sequence[int]) -> None:
        """The KV of these, which a row holds, can be reused."""
        for level in levels[leading(levels, self._published) :]:
            self._publications += 1
            self._published[level] = self._publications

    def evict(self) -> None:
        """Drop the least recently used chunks that nobody holds, as many as the rows need."""
        room = max((self.capacity - self.distinct_kv) // self.level_tokens, 0)
        while len(self._unheld) > room:
            level, _ = self._unheld.popitem(last=False)
            del self._published[level]

    def forget(self) -> None:
        """Drop everything that nobody holds."""
        for level in self._unheld:
            del self._published[level]
        self._unheld.clear()


def leading(levels: Sequence[int], known: Container[int]) -> int:
    """How many leading levels are known. A level is known only if those before it are. O(log levels)."""
    return bisect_left(levels, True, key=lambda level: level not in known)
