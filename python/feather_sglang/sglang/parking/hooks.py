"""What SGLang calls for rows that sit out. In a scheduler that does not park every hook is exactly the original."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from feather_sglang.sglang.parking.rows import Rows


def _rows_of(scheduler: Any) -> Rows | None:
    rows: Rows | None = scheduler.__dict__.get("feather_rows")
    return rows


def pass_begins(scheduler: Any) -> None:
    """A prefill batch may be formed."""
    if (rows := _rows_of(scheduler)) is not None:
        rows.pass_begins()


def pass_ends(scheduler: Any) -> None:
    """It was formed, or not."""
    if (rows := _rows_of(scheduler)) is not None:
        rows.pass_ends()


def adder_built(adder: Any) -> None:
    """The pass has its ``PrefillAdder``."""
    if (rows := Rows.current()) is not None:
        rows.reserve(adder)


def decode_pass(original: Callable[..., Any], scheduler: Any, batch: Any) -> Any:
    """The running batch decodes, with all its rows or some."""
    rows = _rows_of(scheduler)
    return original(scheduler, batch) if rows is None else rows.decode(original, batch)


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
