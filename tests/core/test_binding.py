"""The extension module: bad input is refused by name, and leaves the index as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from pathlib import Path

import numpy as np
import pytest

from feather_sglang._cht import Index, build_info
from tests.core.peak import containers

ROOT = Path(__file__).resolve().parents[2]

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


NEW = {"id": 3, "segments": [TOKENS], "length": 200, "arrival": (0, 3)}
LEVELS = {"id": 3, "levels": [1, 2], "level_tokens": 64, "length": 200, "arrival": (0, 3)}
PLAN = {"now": 0, "kv_tokens": 1000, "rows": 4, "prefill_tokens": 1000, "idle": False}


@pytest.mark.parametrize(
    ("method", "fields", "error", "names"),
    [
        ("insert", NEW | {"id": -1}, OverflowError, "id"),
        ("insert", NEW | {"id": "3"}, TypeError, "id"),
        ("insert", NEW | {"id": 2}, ValueError, "id 2"),
        ("insert", NEW | {"segments": [TOKENS, [1.5]]}, TypeError, "tokens"),
        ("insert", NEW | {"segments": [], "length": 0}, ValueError, "length 0"),
        ("insert", NEW | {"reserve": 1 << 41}, ValueError, "reserve 2199023255552"),
        ("insert", NEW | {"shareable": -1}, OverflowError, "shareable"),
        ("insert", NEW | {"arrival": (0,)}, ValueError, "arrival"),
        ("insert", NEW | {"namespace": (1,)}, TypeError, "namespace"),
        ("insert", NEW | {"namespace": "lora"}, TypeError, "namespace"),
        ("insert_levels", LEVELS | {"levels": [0.5]}, TypeError, "levels"),
        ("insert_levels", LEVELS | {"levels": [1 << 64]}, TypeError, "levels"),
        ("insert_levels", LEVELS | {"length": 1 << 41}, ValueError, "length 2199023255552"),
        ("grow", {"id": 1, "tokens": [TOKENS]}, TypeError, "tokens"),
        ("grow", {"id": 1, "tokens": np.zeros((2, 2), dtype=np.int64)}, ValueError, "tokens"),
        ("grow", {"id": 2, "tokens": TOKENS}, ValueError, "id 2: the request is not running"),
        ("publish", {"id": 1, "tokens": -1, "computing": True}, OverflowError, "tokens"),
        ("activate", {"id": 1}, ValueError, "id 1: the request is not waiting"),
        ("plan", PLAN | {"rows": 1 << 32}, OverflowError, "rows"),
        ("plan", PLAN | {"now": -1}, OverflowError, "now"),
        ("undo", {"keep": -1}, OverflowError, "keep"),
        ("settle", {"reused": [3], "refused": []}, TypeError, "reused"),
    ],
)
def test_what_is_refused_changes_nothing(method, fields, error, names):
    index = make()
    for id in (1, 2):
        index.insert(id, [TOKENS], length=200, arrival=(0, id))
    index.activate(1)
    before = index.stats(), index.best(), index.running()
    with pytest.raises(error) as raised:
        getattr(index, method)(**fields)
    said = [str(raised.value), *getattr(raised.value, "__notes__", [])]
    assert any(names in line for line in said), said
    assert (index.stats(), index.best(), index.running()) == before
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


def test_a_key_of_a_million_tokens():
    """sglang#28215, #35448: the same path from every container, and no copy of a buffer."""
    index = make(kv_capacity=1 << 40)
    for id, (name, tokens) in enumerate(containers().items()):
        index.insert(id, [tokens], length=len(tokens), arrival=(0, id))
        if id == 0:
            index.activate(id)
            index.publish(id, len(tokens), False)
        else:
            assert index.best() == (id, 1), f"{name}: the same path, so all but the last token is held"
            index.leave(id, False)
    command = [sys.executable, "-m", "tests.core.peak"]
    peaks = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    copied = len(tokens) * 8
    assert peaks["list"] > 0.9 * copied, "a copy would be seen"
    assert max(peaks["numpy"], peaks["array"]) < copied / 4, peaks


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
