"""Rows of a running batch, sorted by family: what shares KV lies side by side.

SGLang appends what it has prefilled to the running batch, so families end up mixed. A kernel that reads a shared prefix
once wants the rows of a group to be neighbours, and one that reads it for every row finds more of it in its cache.

A row is much more than a request: SGLang keeps lengths, KV rows, sampling parameters, penalties, logit biases, log
probability requests and grammars by position. Its own ``ScheduleBatch.filter_batch(keep_indices=...)`` moves all of
them, so that is what moves them here; results in flight are not touched, because they carry a list of requests and
tensors of their own. It takes indices that keep every row for "nothing to do", whatever their order (0.5.20-0.5.23),
hence one entry more in ``reqs``, which is never looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from feather_sglang.core.interface import Decode, Limits
from feather_sglang.sglang.coexistence import ROWS_LEFT_ALONE, reason

ALL_ROWS = Limits(kv_tokens=0, rows=0, prefill_tokens=0)
"""Limits of a pass in which every row decodes: they only name an order."""


class RowOrder:
    """Sorts the batches of one scheduler, before they decode.

    :param scheduler: SGLang's ``Scheduler``.
    :param plan: all running rows in family order, by the ids of the core; None: there is no order to be had. It goes by
        the whole of a prompt, computed or not, so a row that joined needs no second look.
    """

    def __init__(self, scheduler: Any, plan: Callable[[], Decode | None]) -> None:
        self.stands_back = without_order(scheduler)
        """Why rows stay as they are; None: they are sorted."""
        self.sorts = 0
        """Times that an order was asked for."""
        self.moves = 0
        """Times that it was another than the present one."""
        self._plan = plan

    def arrange(self, batch: Any) -> None:
        """Sort the rows of a batch (SGLang's ``ScheduleBatch``), if any joined since it was sorted last.

        SGLang makes another list of requests for every change of a batch, or a longer one: the same list of the same
        length is sorted, and what is left of a sorted list still is.
        """
        reqs = batch.reqs
        before, length = batch.__dict__.get("feather_sorted", ((), 0))
        if (reqs is before and len(reqs) == length) or self.stands_back is not None:
            return
        if reqs is not before and _is_left_of(reqs, before):
            batch.feather_sorted = (reqs, len(reqs))
            return
        if len(reqs) > 1 and not any(req.beam_group is not None for req in reqs):
            plan = self._plan()
            if plan is None:
                return
            self.sorts += 1
            permutation = _permutation(reqs, plan.rows)
            if permutation is not None:
                self.moves += 1
                _permute(batch, permutation)
        batch.feather_sorted = (batch.reqs, len(batch.reqs))


def forget_order(batch: Any) -> None:
    """Let go of the rows that a batch had when it was sorted."""
    batch.__dict__.pop("feather_sorted", None)


def without_order(scheduler: Any) -> str | None:
    """Why the rows of this scheduler's batches are left alone; None: they are sorted."""
    return reason(ROWS_LEFT_ALONE, scheduler)


def _is_left_of(reqs: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether ``reqs`` is ``before`` with some of them missing."""
    rest = reversed(before)
    return all(req in rest for req in reversed(reqs))  # from the end, where one that joined ends it at once


def _permutation(reqs: Sequence[Any], order: Sequence[int]) -> list[int] | None:
    """Indices into ``reqs`` that sort them by ``order``, what it does not name last; None: they are sorted."""
    rank = {id: i for i, id in enumerate(order)}
    last = len(rank)
    ranks = [
        rank.get(tracked.id, last) if (tracked := req.__dict__.get("feather")) is not None else last for req in reqs
    ]
    permutation = sorted(range(len(reqs)), key=ranks.__getitem__)
    return None if permutation == list(range(len(reqs))) else permutation


def _permute(batch: Any, permutation: list[int]) -> None:
    batch.reqs = [*batch.reqs, None]  # one row too many, so that filtering it away is something to do
    batch.filter_batch(keep_indices=permutation)
