"""How much of the KV that decode reads is distinct: from what the client knows, so for any policy and any server."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from feather_sglang.bench.client import Reply


class RunningKV(NamedTuple):
    """Means over the tokens that decode steps generated, in tokens."""

    total: float
    """KV of the requests in the step, shared tokens counted for each."""
    distinct: float
    """The same, shared tokens counted once."""


SAMPLES = 2000
"""Moments that are looked at."""

_BEFORE = 0.02
"""Seconds before a token came in which its step ran: the tokens of one step come one after the other, and a row that
ended with it must still be seen."""


def running_kv(prompts: Sequence[Sequence[int]], replies: Sequence[Reply]) -> RunningKV:
    """A request is taken to decode from its first token to its last.

    The distinct tokens of a set of prompts are its tokens without, in lexicographic order, what each has in common with
    the one before it.
    """
    order = sorted(range(len(prompts)), key=lambda i: list(prompts[i]))
    common = np.array([0, *(_common(prompts[a], prompts[b]) for a, b in pairwise(order))])
    length = np.array([len(prompts[i]) for i in order])
    times = [replies[i].sent + replies[i].ttft + np.cumsum([0.0, *replies[i].gaps]) for i in order]
    first, last = np.array([each[0] for each in times]), np.array([each[-1] for each in times])
    moments = np.sort(np.concatenate([each[1:] - np.minimum(np.diff(each) / 2, _BEFORE) for each in times]))
    if not len(moments):
        return RunningKV(0.0, 0.0)
    total = distinct = 0
    chosen = moments[:: -(-len(moments) // SAMPLES)]
    for moment in chosen:
        rows = np.flatnonzero((first <= moment) & (last >= moment))
        held = int(length[rows].sum()) + sum(int(np.searchsorted(times[row], moment)) for row in rows)
        total += held
        # In common with the running one before it: the least between neighbours from there to here.
        distinct += held - sum(int(common[a + 1 : b + 1].min()) for a, b in pairwise(rows))
    return RunningKV(total / len(chosen), distinct / len(chosen))


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    size = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(different[0]) if len(different) else size
