"""How much of a workload's prefill a perfect scheduler would take from the cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def cacheable_tokens(prompts: Iterable[Sequence[int]], page_size: int = 1) -> int:
    """The sum, over prompts in order of admission, of min(longest common prefix with any earlier one, length - 1),
    floored to the page.

    The last token of a prompt is always computed. Unless one prompt is a prefix of another, the order does not matter:
    every page that two prompts share is computed once, whoever comes first.
    """
    root: dict[Any, Any] = {}
    total = 0
    for prompt in prompts:
        node, shared, follows = root, 0, True
        for start in range(0, len(prompt) - page_size + 1, page_size):
            page = tuple(prompt[start : start + page_size])
            follows = follows and page in node
            if follows and start + page_size < len(prompt):
                shared += page_size
            node = node.setdefault(page, {})
        total += shared
    return total
