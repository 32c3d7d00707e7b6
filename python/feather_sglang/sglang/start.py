"""The start of the policy in one scheduler, and what it says of itself: a start line and ``/server_info``."""

from __future__ import annotations

import logging
import os
from typing import Any

from feather_sglang import __version__
from feather_sglang.core.recording import Recorder
from feather_sglang.core.settings import Settings
from feather_sglang.sglang import coexistence, compat, observe, queue
from feather_sglang.sglang.adapter import Adapter
from feather_sglang.sglang.arguments import hash_key_of, mismatch_message, options_of, resolved_of
from feather_sglang.sglang.compat import check_route, check_version, counts_held_rows
from feather_sglang.sglang.options import DISABLE, POLICY, is_disabled, settings_of
from feather_sglang.sglang.parking import start as parking
from feather_sglang.sglang.ranks import Ranks
from feather_sglang.sglang.ticks import Ticks

logger = logging.getLogger(__name__)


class MismatchError(RuntimeError):
    """This SGLang is not one that the plugin knows, or cannot be hooked."""


def refuse_or_stand_back(server_args: Any) -> str | None:
    """Why the policy stands back although it was chosen; None: it does not.

    :raises MismatchError: if this SGLang cannot be trusted with it and ``--feather-on-mismatch`` says ``refuse``.
    """
    if is_disabled(os.environ):
        return f"{DISABLE} is set"
    problems = check_version() + check_route()
    if not problems:
        return None
    if options_of(server_args).on_mismatch == "refuse":
        raise MismatchError(mismatch_message(problems))
    return "; ".join(problems)


def activate(scheduler: Any) -> None:
    """Put the policy to work in a scheduler that has just been initialised, if it was chosen and has a meaning there.

    :raises MismatchError: see ``refuse_or_stand_back``.
    :raises OptionError: if an option is bad.
    """
    if scheduler.schedule_policy != POLICY:
        return
    reason = refuse_or_stand_back(scheduler.server_args) or without_meaning(scheduler)
    if reason is not None:
        scheduler.feather_stands_back = reason
        observe.stands_back(scheduler)
        logger.warning("feather: first come, first served, because %s", reason)
        return
    options = options_of(scheduler.server_args)
    settings = settings_of(
        options,
        page_size=scheduler.page_size,
        kv_capacity=scheduler.max_total_num_tokens,
        hash_key=hash_key_of(scheduler.server_args),
    )
    recorder = observe.recorder_of(scheduler, options)
    adapter = attach(
        scheduler, settings, max_wait=options.max_wait, row_order=options.row_order == "on", recorder=recorder
    )
    parking.begin(scheduler, adapter, options)
    observe.begin(adapter, scheduler, options, resolved_of(scheduler.server_args))
    logger.info("feather: %s", start_line(settings, options.max_wait))


def attach(
    scheduler: Any,
    settings: Settings,
    *,
    max_wait: float | None = None,
    row_order: bool = True,
    recorder: Recorder | None = None,
) -> Adapter:
    """Give a scheduler an adapter with a core of these settings; its queue is taken over as it is.

    :param max_wait: the bound on waiting in seconds; None: that of the settings, in tokens, stays.
    :param row_order: whether the rows of running batches are sorted by family.
    :param recorder: writes down what reaches the core.
    """
    from sglang.srt.managers.schedule_policy import CLIP_MAX_NEW_TOKENS

    from feather_sglang.sglang.record import cores_of

    adapter = Adapter(
        scheduler,
        settings,
        cores_of(recorder),
        clip=CLIP_MAX_NEW_TOKENS,
        counts_held_rows=counts_held_rows(),
        row_order=row_order,
        ranks=Ranks.of(scheduler),
    )
    adapter.watch.take_recorder(recorder)
    scheduler.feather = adapter
    scheduler.feather_ticks = Ticks(adapter, max_wait, synchronous=scheduler.device == "cpu")
    queue.follow(scheduler, adapter)
    if compat.is_patched():
        from feather_sglang.sglang.native import FeatherPolicy

        scheduler.policy.external = FeatherPolicy.of(scheduler)
    return adapter


def without_meaning(scheduler: Any) -> str | None:
    """Why ordering by prefix has no meaning in this scheduler; None: it has."""
    return coexistence.reason(coexistence.INERT, scheduler)


def row_order_of(adapter: Adapter) -> str:
    """``on``, ``off``, or why the rows of decode batches are left as they are."""
    order = adapter.row_order
    return "off" if order is None else order.stands_back or "on"


def start_line(settings: Settings, max_wait: float) -> str:
    """Policy, order, gate, chunk, ageing and barrier, as logged at the start."""
    return (
        f"policy={POLICY} order={settings.order} gate={settings.gate} chunk={settings.chunk_size} "
        f"ageing={settings.aging} barrier={settings.barrier_min} max_wait={max_wait:g}s "
        + (f"lanes={settings.lanes} length={settings.length} " if settings.lanes > 1 else "")
        + f"version={__version__}"
    )


def state_of(scheduler: Any) -> dict[str, Any] | None:
    """What ``/server_info`` shows as ``internal_states[i]["feather"]``, plain builtins; None: another policy."""
    adapter: Adapter | None = scheduler.__dict__.get("feather")
    if adapter is None:
        reason = scheduler.__dict__.get("feather_stands_back")
        return None if reason is None else {"policy": "fcfs", "version": __version__, "reason": reason}
    if adapter.fallen is not None:
        fallen = {"policy": "fcfs", "version": __version__, "reason": adapter.fallen, "failures": adapter.failures}
        return fallen | adapter.watch.state()
    settings = adapter.settings
    return {
        **adapter.core_state(),
        **observe.state_of(adapter),
        "policy": POLICY,
        "order": settings.order,
        "gate": settings.gate,
        "aging": settings.aging,
        "barrier_min": settings.barrier_min,
        "max_wait": scheduler.feather_ticks.max_wait,
        "chunk_size": settings.chunk_size,
        "row_order": row_order_of(adapter),
        "decode": settings.decode,
        "selector_state": adapter.ask(lambda core: core.selector.state()) or {},
        "parking": parking.state_of(scheduler),
        "version": __version__,
        "waiting": len(adapter.book.waiting) + len(adapter.book.express),
        "running": len(adapter.book.running),
        "ranks": adapter.ranks.size,
        "ticks": scheduler.feather_ticks.seen,
        "failures": adapter.failures,
    }
