"""How much of the KV that decode reads is distinct: from what the client knows, so for any policy and any server."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from feather_sglang.bench.client import Reply


class RunningKV(NamedTuple):
    """Means over the time in which requests decode, in tokens."""

    total: float
    """KV of the requests that decode, shared tokens counted for each."""
    distinct: float
    """The same, shared tokens counted once."""


def running_kv(prompts: Sequence[Sequence[int]], replies: Sequence[Reply]) -> RunningKV:
    """A request is taken to decode from its first token to its last, and to grow evenly meanwhile.

    The distinct tokens of a set of prompts are its tokens without, in lexicographic order, what each has in common with
    the one before it.
    """
    order = sorted(range(len(prompts)), key=lambda i: list(prompts[i]))
    common = np.array([0, *(_common(prompts[a], prompts[b]) for a, b in pairwise(order))])
    length = np.array([len(prompts[i]) for i in order], dtype=float)
    first = np.array([replies[i].sent + replies[i].ttft for i in order])
    last = np.array([replies[i].sent + replies[i].latency for i in order])
    new = np.array([replies[i].output_tokens for i in order], dtype=float)
    moments = np.unique(np.concatenate([first, last]))
    total = distinct = seconds = 0.0
    for begin, end in pairwise(moments):
        rows = np.flatnonzero((first <= begin) & (last >= end))
        if not len(rows):
            continue
        grown = new[rows] * ((begin + end) / 2 - first[rows]) / (last[rows] - first[rows])
        held = float((length[rows] + grown).sum())
        # In common with the running one before it: the least between neighbours from there to here.
        shared = sum(int(common[a + 1 : b + 1].min()) for a, b in pairwise(rows))
        total += (end - begin) * held
        distinct += (end - begin) * (held - shared)
        seconds += end - begin
    return RunningKV(total / seconds, distinct / seconds) if seconds else RunningKV(0.0, 0.0)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    size = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(different[0]) if len(different) else size
