"""Prompts of which it is known what they share: first tokens are drawn without replacement."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from feather_sglang.bench.tiny_llama import VOCABULARY

_FIRST = 2  # 0 and 1 begin and end a text


class Tokens:
    """Token ids, no two prompts of one source beginning alike unless they were made to."""

    def __init__(self) -> None:
        self._next = count(_FIRST)

    def take(self, length: int) -> list[int]:
        """``length`` tokens of which the first was never given out as a first."""
        first = next(self._next)
        assert first < VOCABULARY, "a test drew more prompts than the vocabulary has tokens"
        return [first, *(_FIRST + (first * 7919 + 31 * i) % (VOCABULARY - _FIRST) for i in range(1, length))]

    def families(self, families: int, members: int, shared: int, own: int) -> list[list[list[int]]]:
        """``families`` x ``members`` prompts: ``shared`` tokens common to a family, then ``own`` of each member."""
        prompts = []
        for _ in range(families):
            prefix = self.take(shared)
            prompts.append([prefix + self.take(own) for _ in range(members)])
        return prompts


def interleaved(families: Sequence[Sequence[list[int]]]) -> list[list[int]]:
    """One member of every family after the other."""
    return [prompt for members in zip(*families, strict=True) for prompt in members]


def grouped(families: Sequence[Sequence[list[int]]]) -> list[list[int]]:
    """One family after the other."""
    return [prompt for members in families for prompt in members]


def cacheable_tokens(prompts: Sequence[Sequence[int]], page: int) -> int:
    """The most tokens that admission in this order could have taken from the cache.

    Σ over prompts of min(longest common prefix with any earlier one, length - 1), floored to the page.
    """
    earlier: set[int] = set()
    total = 0
    for prompt in prompts:
        hashes, value = [], 0
        for token in prompt:
            value = hash((value, token))
            hashes.append(value)
        common = next((i for i, h in enumerate(hashes) if h not in earlier), len(prompt))
        total += min(common, len(prompt) - 1) // page * page
        earlier.update(hashes)
    return total
