"""What operators see of one scheduler and keep of it: metrics, batch lines, decision log, state file.

Put together at its start, refreshed with SGLang's own metrics, and closed at its end.
"""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import Any

from feather_sglang.core.interface import Gate
from feather_sglang.core.recording import Recorder
from feather_sglang.sglang import batch_line, learned, record
from feather_sglang.sglang.adapter import Adapter
from feather_sglang.sglang.decision_log import DecisionLog
from feather_sglang.sglang.keeper import Keeper, load
from feather_sglang.sglang.learned import StateError
from feather_sglang.sglang.metrics import metrics_of
from feather_sglang.sglang.options import OptionError, Options
from feather_sglang.sglang.watch import families_of

logger = logging.getLogger(__name__)


def check(options: Options, resolved: Any = None) -> None:
    """Find out in the launcher what would end, or blind, the scheduler.

    :param resolved: SGLang's arguments, once they are resolved.
    :raises OptionError: if a file cannot be used.
    """
    if not 0 < options.state_every < math.inf:
        raise OptionError(f"--feather-state-every is {options.state_every}; expected a number of seconds above 0.")
    for flag, path in (("--feather-log", options.log), ("--feather-record", options.record)):
        if path is not None and (path.is_dir() or not os.access(path.parent, os.W_OK)):
            raise OptionError(f"{flag} is {path}, which cannot be written. Give a file in a folder that can.")
    if options.state is None:
        return
    try:
        learned.check_writable(options.state)
        found = learned.read(options.state)
        if found is None:
            return
        if resolved is not None:
            learned.check(options.state, found, learned_on(resolved))
        if dump := found.gates.get(options.gate):
            load(_gate(options.gate), dump, options.state)
    except StateError as error:
        raise OptionError(f"--feather-state: {error}") from None


def recorder_of(scheduler: Any, options: Options) -> Recorder | None:
    """What records a scheduler; None: nothing does."""
    leads, replica = scheduler.recv_from_tokenizer is not None, _data_parallel_rank(scheduler)
    if options.record is None or not leads:
        return None
    return record.recorder_of(scheduler, _of_replica(options.record, replica))


def begin(adapter: Adapter, scheduler: Any, options: Options, resolved: Any) -> None:
    """The adapter of a scheduler is at work.

    Of the ranks that share a queue the leader writes; of data parallel ones each has a log, and the first the state.

    :param resolved: SGLang's arguments, resolved.
    :raises OptionError: if the state file cannot be used here.
    """
    watch = adapter.watch
    batch_line.extend(scheduler)
    watch.metrics = metrics_of(scheduler)
    if watch.metrics is not None:
        watch.metrics.adapter = adapter
    leads, replica = scheduler.recv_from_tokenizer is not None, _data_parallel_rank(scheduler)
    try:
        watch.keeper = Keeper(
            options.state,
            learned_on(resolved) | {"device": _device_name(resolved.device)},
            every=options.state_every,
            writes=leads and replica == 0,
            lost=lambda: watch.fell_back("state_not_saved"),
        )
        if adapter.core is not None:
            watch.keeper.resume(adapter.core.gate)
    except StateError as error:
        raise OptionError(f"--feather-state: {error}") from None
    if options.log is not None and leads:
        watch.log = DecisionLog(_of_replica(options.log, replica), lambda: watch.fell_back("log_off"))


def stands_back(scheduler: Any) -> None:
    """The policy was chosen, and does not work in this scheduler."""
    metrics = metrics_of(scheduler)
    if metrics is not None:
        metrics.stood_back()


def refresh(collector: Any) -> None:
    """SGLang wrote its metrics. What goes wrong here ends the policy's metrics, and nothing else."""
    metrics = collector.__dict__.get("feather")
    if metrics is None:
        return
    try:
        metrics.refresh()
    except Exception:
        metrics.adapter = None
        logger.exception("feather: its metrics end here")


def end(adapter: Adapter) -> None:
    """The server is going down."""
    watch = adapter.watch
    if watch.keeper is not None and adapter.core is not None:
        watch.keeper.save(adapter.core.gate)
    if watch.log is not None:
        watch.log.close()
    if watch.recorder is not None:
        watch.recorder.close()


def state_of(adapter: Adapter) -> dict[str, Any]:
    """For ``/server_info``, in plain builtins."""
    waiting = adapter.book.waiting
    answer = adapter.ask(lambda core: families_of(core, waiting) | {"gate_state": core.gate.state()})
    return adapter.watch.state() | (answer or {})


def learned_on(server_args: Any) -> dict[str, str]:
    """What times of steps depend on, as far as the arguments say it."""
    backend = server_args.decode_attention_backend or server_args.attention_backend
    return {
        "model": str(server_args.model_path),
        "attention_backend": str(backend),
        "ranks": f"tp{server_args.tp_size} pp{server_args.pp_size}",
    }


def _of_replica(path: Path, replica: int) -> Path:
    return path.with_name(f"{path.name}.dp{replica}") if replica else path


def _device_name(kind: str) -> str:
    """Such as ``NVIDIA H200``."""
    if kind != "cuda":
        return kind
    import torch

    return str(torch.cuda.get_device_name())


def _data_parallel_rank(scheduler: Any) -> int:
    ranks = scheduler.__dict__.get("ps")  # before 0.5.21
    if ranks is None:
        from sglang.srt.runtime_context import get_parallel

        ranks = get_parallel()
    return ranks.dp_rank or 0


def _gate(name: str) -> Gate:
    from feather_sglang.core.gates import make_gate

    return make_gate(name)
