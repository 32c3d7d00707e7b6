"""The functions that SGLang calls, one a hook. Each hands over to the adapter, if there is one at work.

A scheduler that runs another policy has no adapter, and every hook is then exactly the original.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feather_sglang.sglang import observe, start
from feather_sglang.sglang.adapter import Adapter
from feather_sglang.sglang.attention import register
from feather_sglang.sglang.attention.source import PlanSource
from feather_sglang.sglang.options import POLICY
from feather_sglang.sglang.parking import hooks as parking
from feather_sglang.sglang.ticks import Tick, strayed


def _adapter_of(scheduler: Any) -> Adapter | None:
    adapter: Adapter | None = scheduler.__dict__.get("feather")
    return adapter if adapter is not None and adapter.fallen is None else None


def choose_policy(original: Callable[..., Any], policy: Any, name: str, *rest: Any, **named: Any) -> Any:
    """AROUND ``SchedulePolicy._validate_and_adjust_policy``.

    SGLang's enumeration of policies cannot be extended, and first come, first served is the one that leaves the queue
    alone. Here every hook is checked, so that one that is lost elsewhere is found out.

    :raises MismatchError: see ``start.refuse_or_stand_back``.
    """
    if name == POLICY:
        from sglang.srt.runtime_context import get_server_args

        start.refuse_or_stand_back(get_server_args())
        name = "fcfs"
    return original(policy, name, *rest, **named)


def scheduler_started(result: Any, scheduler: Any, *args: Any, **named: Any) -> None:
    """AFTER ``Scheduler.__init__``."""
    start.activate(scheduler)


def admission_pass(original: Callable[..., Any], scheduler: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``Scheduler._get_new_batch_prefill_raw``."""
    pass_begins(scheduler)
    batch = None
    try:
        result = original(scheduler, *args, **named)
        batch = result[0]
        return result
    finally:
        pass_ends(scheduler, batch)


def pass_begins(scheduler: Any) -> None:
    """A prefill batch may be formed."""
    parking.pass_begins(scheduler)
    adapter = _adapter_of(scheduler)
    if adapter is not None:
        adapter.open()


def pass_ends(scheduler: Any, batch: Any) -> None:
    """It was formed, or not."""
    parking.pass_ends(scheduler)
    adapter = Adapter.current
    if adapter is None:
        _before_launch(scheduler, batch)
        return
    adapter.close(batch)
    if batch is not None:
        _before_launch(scheduler, batch)
    if adapter.core is not None:
        adapter.ranks.compare(adapter.core.decisions)


def order_queue(
    original: Callable[..., Any], policy: Any, waiting_queue: Any, running_batch: Any = None, *args: Any, **named: Any
) -> None:
    """AROUND ``SchedulePolicy.calc_priority``. Without a running batch (diffusion models) there is nothing to plan."""
    original(policy, waiting_queue, running_batch, *args, **named)
    if running_batch is not None:
        queue_ordered(waiting_queue, running_batch)


def queue_ordered(waiting_queue: Any, running_batch: Any) -> None:
    """A pass ordered its queue."""
    if Adapter.current is not None:
        Adapter.current.order(waiting_queue, running_batch)


def candidates(waiting_queue: Any) -> Any:
    """What a patched SGLang offers its adder."""
    adapter = Adapter.current
    return waiting_queue if adapter is None or adapter.fallen is not None else adapter.candidates(waiting_queue)


def adder_built(result: Any, adder: Any, *args: Any, **named: Any) -> None:
    """AFTER ``PrefillAdder.__init__``."""
    if Adapter.current is not None:
        Adapter.current.built(adder)
    parking.adder_built(adder)


def decode_pass(original: Callable[..., Any], scheduler: Any, batch: Any) -> Any:
    """AROUND ``Scheduler.update_running_batch``."""
    adapter = _adapter_of(scheduler)
    if adapter is not None:
        adapter.before_decode(batch)
    _before_launch(scheduler, batch)
    return parking.decode_pass(original, scheduler, batch)


def _before_launch(scheduler: Any, batch: Any) -> None:
    adapter: Adapter | None = scheduler.__dict__.get("feather")
    if adapter is None:
        return
    adapter.share_failure()
    scheduler.feather_ticks.launches(scheduler.forward_ct + 1, batch if "running_mbs" in scheduler.__dict__ else None)


def step_ended(nothing: None, scheduler: Any, batch: Any, result: Any, *args: Any, **named: Any) -> None:
    """AFTER ``Scheduler.process_batch_result``."""
    if _adapter_of(scheduler) is not None:
        scheduler.feather_ticks.ended(batch, result)


def leader_sends(result: Any, scheduler: Any, *args: Any, **named: Any) -> Any:
    """AFTER ``Scheduler._poll_timeout_aborts``, which only the leader calls: what it sends with the requests."""
    tick = leader_message(scheduler)
    return None if tick is None else [*result, tick]


def leader_message(scheduler: Any) -> Tick | None:
    """What the leader has to say in this turn of its loop."""
    tick: Tick | None = None
    if "feather" in scheduler.__dict__:
        tick = scheduler.feather_ticks.due(scheduler._engine_paused)
    return tick


def requests_came(original: Callable[..., Any], scheduler: Any, recv_reqs: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``Scheduler.process_input_requests``: what the leader sent is taken up before the requests that it came
    with. The list itself stays whole: a pipeline stage hands it on."""
    if recv_reqs and (ticks := [message for message in recv_reqs if type(message) is Tick]):
        leader_says(scheduler, ticks)
        recv_reqs = [message for message in recv_reqs if type(message) is not Tick]
    return original(scheduler, recv_reqs, *args, **named)


def leader_says(scheduler: Any, ticks: list[Tick]) -> None:
    """Take up what the leader said.

    :raises DisagreementError: if this rank decided, or decides, otherwise.
    """
    if "feather" not in scheduler.__dict__:
        raise strayed()
    for tick in ticks:
        scheduler.feather_ticks.take(tick)


def split_received(original: Callable[..., Any], receiver: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``SchedulerRequestReceiver._split_work_and_control_reqs``, for attention data parallelism: a tick that a
    later pipeline stage received goes to the ranks that share its queue, as on the first stage, and not to all."""
    work, control = original(receiver, *args, **named)
    if ticks := [message for message in control if type(message) is Tick]:
        return work + ticks, [message for message in control if type(message) is not Tick]
    return work, control


def run_batch(original: Callable[..., Any], scheduler: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``Scheduler.run_batch``."""
    adapter = _adapter_of(scheduler)
    if adapter is None or not adapter.feeds_attention:
        return original(scheduler, *args, **named)
    PlanSource.offered = adapter.paths_of(args[0] if args else named["batch"])
    try:
        return original(scheduler, *args, **named)
    finally:
        PlanSource.offered = None


def flushed(result: Any, scheduler: Any, *args: Any, **named: Any) -> None:
    """AFTER ``Scheduler.flush_cache``, which says whether it did."""
    adapter = _adapter_of(scheduler)
    if adapter is not None and result:
        adapter.flushed()


def internal_state(result: Any, scheduler: Any, *args: Any, **named: Any) -> None:
    """AFTER ``Scheduler.get_internal_state``."""
    extend_state(result.internal_state, scheduler)


def extend_state(internal_state: dict[str, Any], scheduler: Any) -> None:
    """Add what this scheduler says of itself."""
    state = start.state_of(scheduler)
    if state is not None:
        internal_state["feather"] = state
    attention = register.state_of(scheduler)
    if attention is not None:
        internal_state["feather_attention"] = attention


def metrics_logged(result: Any, collector: Any, *args: Any, **named: Any) -> None:
    """AFTER ``SchedulerMetricsCollector.log_stats``: the policy's metrics keep SGLang's time."""
    observe.refresh(collector)


def shut_down(result: Any, scheduler: Any, *args: Any, **named: Any) -> None:
    """AFTER ``Scheduler.handle_shutdown``."""
    adapter = _adapter_of(scheduler)
    if adapter is not None:
        observe.end(adapter)


def lora_draining(drainer: Any, waiting_queue: Any, *args: Any, **named: Any) -> Any:
    """BEFORE ``LoRADrainer.update_draining_state``: it counts the queue before the loop does, and gets a copy so that
    it sees all of it, and not the plan."""
    return (drainer, waiting_queue[:], *args), named
