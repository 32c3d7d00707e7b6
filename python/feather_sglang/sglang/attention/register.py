"""The backend in SGLang: a choice of ``--attention-backend``, made by device, and what SGLang must know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feather_sglang.sglang.attention import BACKEND


def add_choice() -> None:
    """In every process, before arguments are read."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices

    if BACKEND not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices([BACKEND])


def add_backend() -> None:
    """In the process that runs the model."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    register_attention_backend(BACKEND)(create)


def create(runner: Any) -> Any:
    """The backend of a ``ModelRunner``.

    :raises UnsupportedError: if there is none for its device, or its model.
    """
    from feather_sglang.sglang.arguments import options_of
    from feather_sglang.sglang.attention.support import refuse

    sharing = options_of(runner.server_args).sharing
    if runner.device == "cpu":
        from feather_sglang.sglang.attention.cpu import CascadeCpuBackend

        return CascadeCpuBackend(runner, sharing)
    if runner.device == "cuda":
        if runner.use_mla_backend:
            refuse("multi-head latent attention (MLA)", "Leave out --attention-backend.")
        from feather_sglang.sglang.attention.cuda import CascadeCudaBackend

        return CascadeCudaBackend(runner, sharing, init_new_workspace=runner.init_new_workspace)
    refuse(f"the device {runner.device}", "Leave out --attention-backend.")
    return None


def last_slots(original: Callable[..., Any], req_to_token: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``allocation.get_last_loc``: it chooses a Triton kernel by the name of the backend, on any device."""
    if req_to_token.device.type != "cpu":
        return original(req_to_token, *args, **named)
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(req_to_token, *args, **named)


def takes_triton(original: Callable[..., bool], backend: str, *args: Any, **named: Any) -> bool:
    """AROUND ``support_triton``: before 0.5.22 it goes by the name of the backend alone."""
    if backend == BACKEND:
        from sglang.srt.runtime_context import get_server_args

        if get_server_args().device == "cpu":
            return False
    return original(backend, *args, **named)


def state_of(scheduler: Any) -> dict[str, Any] | None:
    """What ``/server_info`` shows as ``internal_states[i]["feather_attention"]``; None: another backend."""
    backend = scheduler.tp_worker.model_runner.attn_backend
    plans = getattr(getattr(backend, "decode_backend", backend), "plans", None)
    return None if plans is None else plans.state()
