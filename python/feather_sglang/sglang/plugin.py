"""The entry point ``sglang.srt.plugins``: what is hooked, in which process.

SGLang calls ``register`` in every process it starts, before arguments are read. Applying a hook imports its target, so
what belongs to the scheduler is hooked only where the scheduler is loaded already: in its own process, in the data
parallel controller and where an ``Engine`` is made, but not in a launcher or a detokenizer.
"""

from __future__ import annotations

import os
import sys

from feather_sglang.sglang import phases
from feather_sglang.sglang.compat import Hook, is_patched
from feather_sglang.sglang.options import POLICY

SCHEDULER = "sglang.srt.managers.scheduler"
RUN_BATCH = f"{SCHEDULER}.Scheduler.run_batch"
_POLICY = "sglang.srt.managers.schedule_policy"
_METRICS = "sglang.srt.observability.metrics_collector"
_ARGS = "sglang.srt.server_args.ServerArgs"


def argument_hooks() -> list[Hook]:
    """The hooks of every process: flags, and their validation before a child is started."""
    from feather_sglang.sglang import arguments

    return [
        Hook(f"{_ARGS}.add_cli_args", "after", arguments.add_flags),
        Hook(f"{_ARGS}.from_cli_args", "after", arguments.keep_flags),
        Hook(f"{_ARGS}.check_server_args", "after", arguments.check),
        read_config_hook(),
    ]


def read_config_hook() -> Hook:
    """Bad YAML as one line: patches leave that alone."""
    from feather_sglang.sglang import arguments

    merge = "sglang.srt.utils.server_args_config_parser.ConfigArgumentMerger.merge_config_with_args"
    return Hook(merge, "around", arguments.read_config)


def scheduler_hooks() -> list[Hook]:
    """The hooks of the scheduler's process, with the parameters that each of them relies on."""
    from feather_sglang.sglang import changes, hooks
    from feather_sglang.sglang.parking import hooks as parking

    scheduler = f"{SCHEDULER}.Scheduler"
    return [
        Hook(f"{_POLICY}.SchedulePolicy._validate_and_adjust_policy", "around", hooks.choose_policy, ("policy",)),
        Hook(
            f"{_POLICY}.SchedulePolicy.calc_priority", "around", hooks.order_queue, ("waiting_queue", "running_batch")
        ),
        Hook(f"{_POLICY}.PrefillAdder.__init__", "after", hooks.adder_built, ("running_batch", "rem_input_tokens")),
        Hook(f"{scheduler}.__init__", "after", hooks.scheduler_started, ("server_args",)),
        Hook(f"{scheduler}._get_new_batch_prefill_raw", "around", hooks.admission_pass, ("running_batch",)),
        Hook(f"{scheduler}.update_running_batch", "around", hooks.decode_pass, ("batch",)),
        Hook(RUN_BATCH, "around", hooks.run_batch, ("batch",)),
        Hook(f"{scheduler}.process_batch_result", "after", hooks.step_ended, ("batch", "result")),
        Hook(f"{scheduler}._poll_timeout_aborts", "after", hooks.leader_sends),
        Hook(f"{scheduler}.process_input_requests", "around", hooks.requests_came, ("recv_reqs",)),
        Hook(
            "sglang.srt.managers.scheduler_components.request_receiver"
            ".SchedulerRequestReceiver._split_work_and_control_reqs",
            "around",
            hooks.split_received,
            ("recv_reqs",),
        ),
        Hook(f"{scheduler}.flush_cache", "after", hooks.flushed),
        Hook(f"{scheduler}.get_internal_state", "after", hooks.internal_state, ("recv_req",)),
        Hook(f"{scheduler}.set_internal_state", "around", changes.set_internal_state, ("recv_req",)),
        Hook(f"{scheduler}.handle_shutdown", "after", hooks.shut_down),
        Hook(f"{_METRICS}.SchedulerMetricsCollector.log_stats", "after", hooks.metrics_logged, ("stats",)),
        Hook(
            "sglang.srt.managers.schedule_batch.ScheduleBatch.cumulate_penalty_output_tokens",
            "around",
            parking.count_output,
        ),
        Hook(
            "sglang.srt.lora.lora_drainer.LoRADrainer.update_draining_state",
            "before",
            hooks.lora_draining,
            ("waiting_queue",),
        ),
    ]


def attention_hooks() -> list[Hook]:
    """The hooks of the process that runs the model: what the attention backend needs, under any policy."""
    from feather_sglang.sglang.attention import register

    allocation, forward = "sglang.srt.mem_cache.allocation", "sglang.srt.model_executor.forward_batch_info"
    return [
        Hook(f"{allocation}.get_last_loc", "around", register.last_slots, ("req_to_token",)),
        *(
            Hook(f"{module}.support_triton", "around", register.takes_triton)
            for module in (allocation, forward, "sglang.srt.utils.common")
        ),
    ]


def phase_hooks() -> list[Hook]:
    """The hooks of a bench that tells prefill, decode and the policy apart."""
    scheduler = f"{SCHEDULER}.Scheduler"
    return [
        Hook(f"{scheduler}.run_batch", "around", phases.run_batch, ("batch",)),
        Hook(f"{scheduler}.get_internal_state", "after", phases.internal_state, ("recv_req",)),
        Hook(f"{_POLICY}.SchedulePolicy.calc_priority", "around", phases.order_queue, ("waiting_queue",)),
    ]


def register_by_name() -> None:
    """Make the policy a choice of a patched SGLang, unless it is one already."""
    from sglang.srt.managers import schedule_policy_registry as registry

    from feather_sglang.sglang.native import policy_class

    if policy_class not in registry.registered_schedule_policies():
        registry.register_schedule_policy(POLICY, policy_class)


def register() -> None:
    """Register the attention backend, and the hooks of this process; SGLang applies those when plugins are loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from feather_sglang.sglang.attention.register import add_backend, add_choice

    add_choice()
    patched = is_patched()
    if patched:
        register_by_name()
    hooks = [read_config_hook()] if patched else argument_hooks()
    if SCHEDULER in sys.modules:
        add_backend()
        hooks += attention_hooks()
        # The patches know nothing of attention backends.
        hooks += [hook for hook in scheduler_hooks() if not patched or hook.target == RUN_BATCH]
        if os.environ.get(phases.VARIABLE):
            hooks += phase_hooks()
    for hook in hooks:
        HookRegistry.register(hook.target, hook.function, HookType(hook.kind))
