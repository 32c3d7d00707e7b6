"""What SGLang calls for rows that sit out. In a scheduler that does not park every hook is exactly the original."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from feather_sglang.sglang.parking.rows import Rows


def _rows_of(scheduler: Any) -> Rows | None:
    rows: Rows | None = scheduler.__dict__.get("feather_rows")
    return rows


def decode_pass(original: Callable[..., Any], scheduler: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``Scheduler.update_running_batch``."""
    rows = _rows_of(scheduler)
    if rows is None:
        return original(scheduler, *args, **named)
    return rows.decode(original, args[0] if args else named["batch"])


def next_batch(original: Callable[..., Any], scheduler: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``Scheduler.get_next_batch_to_run``."""
    with unmixed(scheduler):
        return original(scheduler, *args, **named)


def unmixed(scheduler: Any) -> AbstractContextManager[None]:
    """While this lasts no prefill takes parked rows along."""
    rows = _rows_of(scheduler)
    return nullcontext() if rows is None else rows.unmixed()


def adder_built(result: Any, adder: Any, *args: Any, **named: Any) -> None:
    """AFTER ``PrefillAdder.__init__``."""
    if (rows := Rows.current()) is not None:
        rows.reserve(adder)


def count_output(original: Callable[..., Any], batch: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``ScheduleBatch.cumulate_penalty_output_tokens``: the token before the one that is about to be fed.

    Under overlap SGLang counts the last token that it has seen, which is that one only for a row that decoded in the
    pass before: a row that sat out would count one token twice and one never.
    """
    if Rows.current() is None or not batch.enable_overlap:
        return original(batch, *args, **named)
    tokens = torch.tensor([_before_next(req) for req in batch.reqs], dtype=torch.int64).to(batch.device)
    return batch.sampling_info.penalizer_orchestrator.cumulate_output_tokens(tokens)


def _before_next(req: Any) -> int:
    fed = req.kv.kv_committed_len - len(req.origin_input_ids)
    token: int = req.output_ids[fed - 1] if fed > 0 else req.origin_input_ids[-1]
    return token
