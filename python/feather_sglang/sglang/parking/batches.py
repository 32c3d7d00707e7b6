"""Some rows of a batch as a batch of their own, for one decode step.

SGLang keeps lengths, KV rows, sampling parameters, penalties, biases and grammars by position. Its own ``filter_batch``
and ``merge_batch`` move all of it, so they are what takes rows out and puts them back. A copy of a batch shares tensors
with it, which those two replace and never write to, but not the lists that they extend, nor the penalizers, which know
their batch.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Sequence
from typing import Any

import torch


def take(batch: Any, rows: Sequence[int]) -> Any:
    """These rows, in this order, as a batch of their own; ``batch`` keeps the others.

    :param rows: at least one, and not all of them.
    """
    taken = _copy(batch)
    taken.filter_batch(keep_indices=list(rows))
    chosen = set(rows)
    batch.filter_batch(keep_indices=[i for i in range(len(batch.reqs)) if i not in chosen])
    return taken


def put_back(batch: Any, taken: Any) -> None:
    """What ``take`` took joins ``batch`` again, behind its rows; ``taken`` is left as it is, to be run."""
    if not taken.is_empty():
        batch.merge_batch(_copy(taken))
    if not taken.batch_is_full:
        batch.batch_is_full = False


def _copy(batch: Any) -> Any:
    new = copy.copy(batch)
    new.sampling_info = info = copy.copy(batch.sampling_info)
    for name, value in vars(info).items():
        if isinstance(value, list):
            setattr(info, name, value[:])
    info.penalizer_orchestrator = _copy_of_penalties(info.penalizer_orchestrator, new)
    return new


def _copy_of_penalties(penalties: Any, batch: Any) -> Any:
    new = copy.copy(penalties)
    new.batch = batch
    new.penalizers = {}
    for kind, penalizer in penalties.penalizers.items():
        new.penalizers[kind] = other = copy.copy(penalizer)
        other._orchestrator_ref = weakref.ref(new)
        for name, value in vars(other).items():
            if isinstance(value, torch.Tensor):  # added to in place
                setattr(other, name, value.clone())
    return new
