"""What one pass may spend, read from the ``PrefillAdder`` that will spend it.

The adder exists when the queue is first looked at, and the chunked request of the pass before has already taken its
share of it, so its own counters are the exact budgets on every supported version.
"""

from __future__ import annotations

from typing import Any

from feather_sglang.core.interface import Limits
from feather_sglang.sglang.coexistence import ORDERED_ONLY, first

UNLIMITED = 1 << 40
"""Prefill tokens of a pass where SGLang sets no limit."""


def is_idle(scheduler: Any, running: list[Any], adder: Any) -> bool:
    """Whether nothing decodes in this pass, no chunk goes on, and no result is in flight."""
    in_flight = scheduler.__dict__.get("result_queue")  # some versions make it with the overlap loop
    return not (running or scheduler.chunked_req is not None or adder.can_run_list or in_flight)


def prefill_tokens(adder: Any) -> int:
    """Prompt tokens that this pass may still compute. Without chunking the limit is on whole prompts."""
    tokens = adder.rem_input_tokens
    if adder.rem_chunk_tokens is not None:
        tokens = min(tokens, adder.rem_chunk_tokens)
    return int(min(tokens, UNLIMITED))


class Budgets:
    """The budgets of one scheduler.

    :param scheduler: SGLang's ``Scheduler``, initialised.
    :param counts_held_rows: whether this version wants to be told of rows that a continuing chunk already has.
    """

    def __init__(self, scheduler: Any, counts_held_rows: bool) -> None:
        self._scheduler = scheduler
        self._counts_held_rows = counts_held_rows
        self._decodes = first(ORDERED_ONLY, scheduler) is None

    def limits(self, running: list[Any], running_batch: Any, adder: Any) -> Limits:
        """What this pass may spend.

        :param running: every row that the engine runs, of all micro-batches.
        """
        return Limits(
            kv_tokens=int(adder.rem_total_tokens),
            rows=self._free_rows(running_batch, adder),
            prefill_tokens=prefill_tokens(adder),
            step=self._scheduler.forward_ct + 1,
            chunked=adder.rem_chunk_tokens is not None,
            idle=is_idle(self._scheduler, running, adder),
            may_stop=self.may_stop(running_batch),
        )

    def may_stop(self, running_batch: Any) -> bool:
        """Whether a decode step would follow a pass that stops early: prefill-only work would spin instead."""
        return self._decodes and not running_batch.is_prefill_only

    def _free_rows(self, running_batch: Any, adder: Any) -> int:
        """Requests that may still join, as the loop in ``Scheduler._get_new_batch_prefill_raw`` counts them."""
        taken = adder.can_run_list
        held = {"num_held_rows": sum(req.kv.holds_kv for req in taken)} if self._counts_held_rows else {}
        rows = self._scheduler.get_num_allocatable_reqs(len(running_batch.reqs), running_batch=running_batch, **held)
        if adder.prefill_max_requests is not None:
            rows = min(rows, adder.prefill_max_requests)
        return int(rows) - len(taken)
