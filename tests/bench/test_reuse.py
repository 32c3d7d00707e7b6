"""Cacheable tokens, against their definition."""

from __future__ import annotations

import random

import pytest

from feather_sglang.bench.reuse import cacheable_tokens


def by_definition(prompts: list[list[int]], page: int) -> int:
    total = 0
    for number, prompt in enumerate(prompts):
        longest = 0
        for earlier in prompts[:number]:
            common = next((i for i, (a, b) in enumerate(zip(prompt, earlier, strict=False)) if a != b), None)
            longest = max(longest, min(len(prompt), len(earlier)) if common is None else common)
        total += min(longest, max(len(prompt) - 1, 0)) // page * page
    return total


@pytest.mark.parametrize("page", [1, 2, 3, 16])
def test_against_the_definition(page: int) -> None:
    choose = random.Random(page)
    for _ in range(300):
        prompts = [[choose.randrange(2) for _ in range(choose.randrange(24))] for _ in range(choose.randrange(12))]
        assert cacheable_tokens(prompts, page) == by_definition(prompts, page), prompts


def test_the_order_does_not_matter_where_no_prompt_is_a_prefix_of_another() -> None:
    choose = random.Random(0)
    prompts = [[choose.randrange(2) for _ in range(40)] + [2 + number] for number in range(20)]
    totals = set()
    for _ in range(20):
        choose.shuffle(prompts)
        totals.add(cacheable_tokens(prompts))
    assert len(totals) == 1


def test_the_last_token_is_computed() -> None:
    assert cacheable_tokens([[1, 2, 3, 4], [1, 2, 3, 4]]) == 3
    assert cacheable_tokens([[1, 2, 3, 4], [1, 2, 3, 4]], page_size=2) == 2
    assert cacheable_tokens([[], [], [1], [1]]) == 0
