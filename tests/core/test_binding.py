"""The extension module: bad input is refused by name, and leaves the index as it was."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from feather_sglang._cht import Index, build_info

TOKENS = list(range(5, 205))


def make(**changes):
    fields = {
        "chunk_size": 64,
        "page_size": 1,
        "order": "held",
        "aging": 0.0,
        "barrier_min": 256,
        "max_wait_tokens": 1000,
        "kv_capacity": 10_000,
        "hash_key": (1, 2),
    }
    return Index(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"chunk_size": 0}, "chunk_size 0: expected a positive multiple of the page size"),
        ({"chunk_size": 60, "page_size": 16}, r"chunk_size 60: expected a positive multiple of the page size \(16\)"),
        ({"aging": -1.0}, "aging -1: expected a number of at least 0"),
        ({"order": "fifo"}, "expected 'held' or 'missing'"),
    ],
)
def test_bad_configuration(changes, says):
    with pytest.raises(ValueError, match=says):
        make(**changes)


@pytest.mark.parametrize(
    ("tokens", "error", "says"),
    [
        ([1.5] * 200, TypeError, "tokens: expected 64-bit integers"),
        (["a"] * 200, TypeError, "tokens: expected 64-bit integers"),
        ([1 << 63] * 200, TypeError, "tokens: expected 64-bit integers"),
        (7, TypeError, "tokens: expected 64-bit integers"),
        (np.zeros((10, 20), dtype=np.int64), ValueError, "one-dimensional contiguous .* got 2 dimensions"),
        (np.zeros(400, dtype=np.int64)[::2], ValueError, "not contiguous"),
        (np.zeros(200), TypeError, "tokens: expected 64-bit integers"),
        ([1, 2, 3], ValueError, "length 200: the tokens given are 3"),
    ],
)
def test_bad_tokens(tokens, error, says):
    index = make()
    with pytest.raises(error, match=says):
        index.insert(1, [tokens], length=200, arrival=(0, 1))
    assert index.stats()["waiting"] == 0
    index.check_integrity()


def test_duplicates_and_unknown_ids():
    index = make()
    index.insert(1, [TOKENS], length=200, arrival=(0, 1))
    with pytest.raises(ValueError, match="id 1: a request with this id is waiting or running"):
        index.insert(1, [TOKENS], length=200, arrival=(0, 2))
    with pytest.raises(ValueError, match="id 1: the request is not running"):
        index.publish(1, 64, False)
    with pytest.raises(KeyError, match="id 2: no such request"):
        index.publish(2, 64, False)
    with pytest.raises(ValueError, match="level_tokens 16: expected the chunk size of the index"):
        index.insert_levels(3, [1, 2], level_tokens=16, length=200, arrival=(0, 3))
    with pytest.raises(ValueError, match="4 chunks of 64 tokens are more than its length 200"):
        index.insert_levels(3, [1, 2, 3, 4], level_tokens=64, length=200, arrival=(0, 3))
    assert index.leave(1, False)
    assert not index.leave(1, False)
    assert index.stats()["nodes"] == 1


@pytest.mark.parametrize(
    "container",
    [list, tuple, lambda t: array("q", t), lambda t: np.array(t, dtype=np.int64), lambda t: memoryview(array("q", t))],
)
def test_containers_are_equal_and_not_kept(container):
    """sglang#28215, #35448; the buffer is free again when the call returns."""
    index = make()
    tokens = container(TOKENS)
    index.insert(1, [tokens], length=200, arrival=(0, 1))
    if isinstance(tokens, array):
        tokens.append(1)  # an exported buffer could not grow
    index.insert(2, [TOKENS[:100], array("q", TOKENS[100:])], length=200, arrival=(0, 2))
    index.begin()
    order, held, *_ = index.plan(now=0, kv_tokens=10_000, rows=9, prefill_tokens=10_000, idle=True)
    assert ([candidate[0] for candidate in order], held) == ([1], 1), "the same prompt, so one leads"


def test_levels_instead_of_tokens():
    index = make()
    for id in (1, 2):
        index.insert_levels(id, [11, -5, 13, 14], level_tokens=64, length=300, arrival=(0, id))
    index.insert_levels(3, [99, -5], level_tokens=64, length=140, arrival=(0, 3))
    index.begin()
    order, held, *_ = index.plan(now=0, kv_tokens=10_000, rows=9, prefill_tokens=10_000, idle=True)
    assert ([candidate[0] for candidate in order], held) == ([1, 3], 1)


def test_all_signed_64_bit_tokens_are_valid():
    index = make()
    extremes = [-(1 << 63), (1 << 63) - 1, (1 << 62) + 5, 0] * 50
    index.insert(1, [extremes], length=200, arrival=(0, 1))
    assert index.best() == (1, 200)


def test_the_extension_is_a_release_build():
    assert build_info()["profile"] == "release"
