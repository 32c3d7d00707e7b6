"""Prompts of families with a common prefix, for the overhead bench."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

VOCABULARY = 128_000
FAMILIES = 8
SHARED = (0.5, 0.9)
"""The prefixes of the families take from half to nine tenths of a prompt."""


class Prompts:
    """``waiting`` prompts of ``tokens`` tokens each, in shuffled order; the prefixes alone are cached already."""

    def __init__(self, tokens: int, waiting: int) -> None:
        self.tokens, self.waiting = tokens, waiting
        self._random = np.random.default_rng([tokens, waiting])
        self._prefixes = [self._draw(int(tokens * share)) for share in np.linspace(*SHARED, FAMILIES)]

    def prefixes(self) -> list[array[int]]:
        return [as_array(prefix) for prefix in self._prefixes]

    def __iter__(self) -> Iterator[array[int]]:
        """Made one by one: a hundred thousand of them need not lie in memory at once."""
        for family in self._random.permutation(self.waiting) % FAMILIES:
            prefix = self._prefixes[family]
            yield as_array(np.concatenate([prefix, self._draw(self.tokens - len(prefix))]))

    def _draw(self, count: int) -> Any:
        return self._random.integers(5, VOCABULARY, count, dtype=np.int64)


def as_array(tokens: Any) -> array[int]:
    """As SGLang keeps token ids."""
    result = array("q")
    result.frombytes(memoryview(tokens).cast("B"))
    return result
