"""SGLang's real Scheduler in this process, on the CPU, stepped by hand; nothing of it is replaced.

``step_normal`` is the body of SGLang's ``event_loop_normal``; ``step_overlap`` is that of ``event_loop_overlap``, which
builds the next batch *before* it sees the result of the last: what is published, and when, differs.
"""

from __future__ import annotations

import gc
import os
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

for _name, _value in {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "SGLANG_PLATFORM": "feather_cpu"}.items():
    os.environ.setdefault(_name, _value)

import msgspec  # noqa: E402
import sglang.srt.managers.scheduler as scheduler_module  # noqa: E402  loaded before plugins, as in its own process
import torch  # noqa: E402
import zmq  # noqa: E402
from sglang.srt import runtime_context  # noqa: E402
from sglang.srt.distributed.parallel_state import (  # noqa: E402
    destroy_distributed_environment,
    destroy_model_parallel,
)
from sglang.srt.managers import io_struct  # noqa: E402
from sglang.srt.plugins import load_plugins  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402
from sglang.srt.server_args import PortArgs, ServerArgs  # noqa: E402

from feather_sglang.bench.tiny_llama import write_model  # noqa: E402


def start(model: Path, *, overlap: bool, settings: Mapping[str, Any]) -> Any:
    """A Scheduler of a tiny model with the plugins of this process loaded.

    :param model: the folder for the model.
    :param overlap: which loop it is to be stepped by.
    :param settings: SGLang's ``ServerArgs``, over small defaults.
    """
    torch.set_num_threads(1)
    load_plugins()
    defaults: dict[str, Any] = {
        "model_path": str(write_model(model)),
        "device": "cpu",
        "attention_backend": "torch_native",
        "disable_cuda_graph": True,
        "load_format": "dummy",
        "dtype": "float32",
        "max_total_tokens": 60_000,
        "schedule_policy": "feather",
        "log_level": "warning",
        "skip_tokenizer_init": True,
        "disable_overlap_schedule": not overlap,
        "chunked_prefill_size": 8192,
    }
    args = ServerArgs(**(defaults | dict(settings)))
    args.resolve_once()
    args.check_server_args()
    scheduler = _made(args)
    scheduler.enable_skip_finishing_decode = overlap  # as the event loops set it
    scheduler.result_queue = deque()
    scheduler._war_barrier_enabled = False
    _unwatch(scheduler.watchdog)
    # Nobody reads what a Scheduler sends here, and a context that is dropped with something unsent waits for ever.
    for socket in _alive(zmq.Socket):
        socket.linger = 0
    return scheduler


def draw_weights(scheduler: Any) -> None:
    """Weights with which an answer depends on its KV: those of SGLang's dummy loader are too small for that."""
    generator = torch.Generator().manual_seed(1)
    for name, weights in scheduler.tp_worker.model_runner.model.named_parameters():
        drawn = torch.randn(weights.shape, generator=generator) * 0.4
        weights.data.copy_(torch.ones(weights.shape) if "norm" in name else drawn)


def _made(args: ServerArgs) -> Any:
    ports = PortArgs.init_new(args)
    if not hasattr(runtime_context, "SpawnRanks"):  # SGLang 0.5.20: a Scheduler is told its ranks
        runtime_context.publish(args, role="scheduler")
        names = ("gpu_id", "tp_rank", "moe_ep_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank")
        return scheduler_module.Scheduler(args, ports, **dict.fromkeys(names, 0), dp_rank=None)
    world_rank = runtime_context.spawn_world_rank(args, tp_rank=0, pp_rank=0)
    ranks = runtime_context.SpawnRanks(world_rank=world_rank, dp_rank=None, gpu_id=0)
    runtime_context.publish(args, role="scheduler", ranks=ranks)
    return scheduler_module.Scheduler(args, ports)


def _alive(kind: type) -> list[Any]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind) and not thing.closed]


def _unwatch(watchdog: Any) -> None:
    """Have a watchdog forget its Scheduler: its thread never ends, and would keep each one's KV pool in memory."""
    watchdog.is_active = lambda: False
    watchdog.get_counter = lambda: 0
    watchdog.dump_info = None


def take_down() -> None:
    """Take down what SGLang allows once in a process, so that another Scheduler can be started."""
    destroy_model_parallel()
    destroy_distributed_environment()
    for context in _alive(zmq.Context):
        context.destroy(linger=0)


def tokenized(rid: str, prompt: Sequence[int], new: int, **fields: Any) -> Any:
    """A request as the tokenizer's process hands it to the Scheduler's: greedy, ``new`` tokens, no end of text.

    :param fields: of SGLang's ``TokenizedGenerateReqInput``.
    """
    sampling = SamplingParams(max_new_tokens=new, temperature=0, ignore_eos=True)
    sampling.normalize(None)
    struct = io_struct.TokenizedGenerateReqInput
    required = {f.name: None for f in msgspec.structs.fields(struct) if f.required}
    given = {
        "rid": rid,
        "input_text": "",
        "input_ids": array("q", prompt),
        "mm_inputs": None,
        "sampling_params": sampling,
        "return_logprob": False,
        "logprob_start_len": -1,
        "top_logprobs_num": 0,
        "token_ids_logprob": None,
        "stream": False,
    }
    return struct(**(required | given | fields))


def step_normal(scheduler: Any, chosen: Callable[[Any], None] = lambda batch: None) -> None:
    """One pass of the loop without overlap.

    :param chosen: is shown the batch before it runs (None: there is none).
    """
    batch = _next_batch(scheduler)
    chosen(batch)
    if batch:
        with torch.no_grad():
            scheduler.process_batch_result(batch, scheduler.run_batch(batch))
    scheduler.last_batch = batch


def step_overlap(scheduler: Any, chosen: Callable[[Any], None] = lambda batch: None) -> None:
    """One pass of the loop with overlap; see ``step_normal``."""
    batch = _next_batch(scheduler)
    chosen(batch)
    at_once = scheduler.is_disable_overlap_for_batch(batch, last_batch=scheduler.last_batch)
    if at_once:
        scheduler.process_batch_result(*scheduler.result_queue.popleft())
    result = None
    if batch:
        with torch.no_grad():
            result = scheduler.run_batch(batch)
        scheduler._apply_war_barrier()
        scheduler.result_queue.append((batch.copy(), result))
    else:
        scheduler._sched_idled = True
    if scheduler.last_batch and not at_once:
        scheduler.process_batch_result(*scheduler.result_queue.popleft())
    if scheduler.is_generation:
        scheduler.launch_batch_sample_if_needed(result, batch)
    scheduler.last_batch = batch


def _next_batch(scheduler: Any) -> Any:
    plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
    scheduler.running_batch = plan.running_batch
    return plan.batch_to_run
