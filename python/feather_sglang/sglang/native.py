"""The policy as a patched SGLang (``patches/``) calls it: by name, without hooks.

Such an SGLang loads this module when ``--schedule-policy feather`` is among its choices, plugin or not. Every method
hands over to what the plugin's hook in the same place hands over to, so both make the same decisions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from typing import Any

from sglang.srt.managers.schedule_policy_registry import ExternalSchedulePolicy

from feather_sglang.sglang import arguments, changes, hooks, start


class FeatherPolicy(ExternalSchedulePolicy):
    """The policy of one scheduler.

    :param scheduler: SGLang's ``Scheduler``, initialised.
    """

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> None:
        arguments.add_flags(None, parser)

    @classmethod
    def from_cli_args(cls, server_args: Any, args: argparse.Namespace) -> None:
        arguments.keep_flags(server_args, type(server_args), args)

    @classmethod
    def check_server_args(cls, server_args: Any) -> None:
        arguments.check(None, server_args)

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        start.activate(scheduler)

    @classmethod
    def of(cls, scheduler: Any) -> FeatherPolicy:
        """The policy of a scheduler that has its adapter already."""
        policy = cls.__new__(cls)
        policy._scheduler = scheduler
        return policy

    def begin_pass(self) -> None:
        hooks.pass_begins(self._scheduler)

    def order(self, waiting_queue: Any, running_batch: Any) -> None:
        hooks.queue_ordered(waiting_queue, running_batch)

    def reserve(self, adder: Any) -> None:
        hooks.adder_built(None, adder)

    def candidates(self, waiting_queue: Any, adder: Any) -> Iterable[Any]:
        return hooks.candidates(waiting_queue)

    def end_pass(self, batch: Any) -> None:
        hooks.pass_ends(self._scheduler, batch)

    def decode(self, running_batch: Any, prepare: Callable[[Any], Any]) -> Any:
        return hooks.decode_pass(lambda _, batch: prepare(batch), self._scheduler, running_batch)

    def on_step(self, batch: Any, result: Any) -> None:
        hooks.step_ended(None, self._scheduler, batch, result)

    def leader_message(self) -> Any:
        return hooks.leader_message(self._scheduler)

    def on_leader_message(self, message: Any) -> None:
        hooks.leader_says(self._scheduler, [message])

    def on_flush_cache(self) -> None:
        hooks.flushed(True, self._scheduler)

    def on_log_stats(self) -> None:
        hooks.metrics_logged(None, self._scheduler.metrics_collector)

    def on_shutdown(self) -> None:
        hooks.shut_down(None, self._scheduler)

    def extend_internal_state(self, internal_state: dict[str, Any]) -> None:
        hooks.extend_state(internal_state, self._scheduler)

    def set_internal_state(self, recv_req: Any, apply: Callable[[Any], Any]) -> Any:
        return changes.set_internal_state(lambda scheduler, request: apply(request), self._scheduler, recv_req)


policy_class = FeatherPolicy
"""By this name SGLang finds it."""
