"""The start of parking in one scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feather_sglang.core.interface import Decode, Limits, Resident
from feather_sglang.sglang.adapter import Adapter
from feather_sglang.sglang.options import Options
from feather_sglang.sglang.parking.rows import Rows
from feather_sglang.sglang.parking.slab import HostSlab
from feather_sglang.sglang.parking.support import buffers_of, check_memory, token_bytes
from feather_sglang.sglang.parking.tails import Tails

HOST_TOKENS = 65_536
"""To park, unless the options say otherwise; never more than the KV pool holds."""
LINK = 20_000_000_000
"""Bytes a second between host and device: PCIe 4 x16, assumed. Elsewhere a copy is not beside anything."""


def begin(scheduler: Any, adapter: Adapter, options: Options) -> None:
    """Have rows parked, or chosen, in this scheduler, if the options say so.

    :raises OptionError: if it cannot hold here.
    """
    if options.park == "off" and options.decode == "all":
        return
    tokens = options.park_host_tokens
    if tokens is None:
        tokens = min(HOST_TOKENS, scheduler.max_total_num_tokens)
    attach(scheduler, adapter, host_tokens=tokens if options.park != "off" else 0, most=options.park_rows)


def attach(scheduler: Any, adapter: Adapter, *, host_tokens: int, most: int | None = None) -> Rows:
    """Have the rows of a scheduler park under memory pressure, and chosen if its core does not take all.

    :param host_tokens: 0: rows sit out, and are never parked.
    :param most: rows that may be parked at a time; None: as many as there is room for.
    :raises OptionError: if it cannot hold here.
    """
    buffers = buffers_of(scheduler)
    check_memory(buffers, host_tokens)
    slab = HostSlab(buffers, host_tokens, _streams(scheduler, buffers[0]))

    def choose(limits: Limits, residents: Sequence[Resident]) -> Decode | None:
        decode = adapter.plan_decode(limits, residents)
        adapter.share_failure()  # rows are moved and launched next
        return decode

    if most is None:
        most = scheduler.max_running_requests
    scheduler.feather_rows = rows = Rows(
        scheduler,
        Tails(scheduler, slab),
        most,
        choose,
        link_tokens=LINK // token_bytes(buffers) if buffers[0].is_cuda else 0,
        always=adapter.settings.decode != "all",
    )
    return rows


def state_of(scheduler: Any) -> dict[str, Any] | str:
    """For ``/server_info``: figures, or ``off``."""
    rows: Rows | None = scheduler.__dict__.get("feather_rows")
    return "off" if rows is None else rows.state()


def _streams(scheduler: Any, buffer: Any) -> tuple[Any, ...]:
    """The streams that use the KV pool, on an NVIDIA GPU."""
    if not buffer.is_cuda:
        return ()
    import torch

    return (torch.cuda.current_stream(), scheduler.forward_stream)
