"""Where rows cannot sit out, or be parked, and why: found out at the start, in the launcher where it can know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from feather_sglang.sglang.coexistence import ROWS_ALL_DECODE, first
from feather_sglang.sglang.compat import installed_version
from feather_sglang.sglang.options import OptionError, Options

SINCE = "0.5.22"
"""Earlier versions of SGLang lose the rows that a decode step is not given, and account for KV differently."""


def check_options(options: Options) -> None:
    """:raises OptionError: if a number makes no sense."""
    for name, value in (("park-host-tokens", options.park_host_tokens), ("park-rows", options.park_rows)):
        if value is not None and value < 1:
            raise OptionError(f"--feather-{name} is {value}; expected at least 1. Give more, or leave it out.")


def check_arguments(options: Options, resolved: Any) -> None:
    """:param resolved: SGLang's arguments, resolved.
    :raises OptionError: if rows are to sit out, and these do not go with it.
    """
    if options.park == "off" and options.decode == "all":
        return
    name = "--feather-park" if options.park != "off" else "--feather-decode"
    if (case := first(ROWS_ALL_DECODE, resolved)) is not None:
        raise OptionError(f"{name} does not go with {case.what}: {case.why}. Leave one of the two out.")
    if not is_supported():
        raise OptionError(f"{name} needs SGLang {SINCE} or later, and this is {installed_version()}. Leave it out.")


def is_supported() -> bool:
    """Whether rows can sit out in the installed SGLang at all."""
    return _numbers(installed_version()) >= _numbers(SINCE)


def buffers_of(scheduler: Any) -> list[Any]:
    """The tensors of the KV pool, ``[slots, ...]`` each.

    :raises OptionError: if parking cannot hold in this scheduler.
    """
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
    for unfit, why in (
        (scheduler.model_config.is_encoder_decoder, "an encoder-decoder model keeps encoder states by row"),
        (scheduler.enable_hisparse, "sparse attention keeps a device buffer by row"),
        (type(pool) not in (MHATokenToKVPool, MLATokenToKVPool), f"the KV pool {type(pool).__name__} has no host copy"),
        (getattr(pool, "use_hnd", False), "the KV pool is laid out by head, and has no host copy"),
        (getattr(pool, "is_quantized_kv_cache", False), "a quantised KV pool has no host copy"),
    ):
        if unfit:
            raise OptionError(f"--feather-park and --feather-decode cannot hold here: {why}. Leave them out.")
    return [*pool.k_buffer, *pool.v_buffer] if hasattr(pool, "k_buffer") else list(pool.kv_buffer)


def token_bytes(buffers: Sequence[Any]) -> int:
    """Bytes of the KV of one token."""
    return sum(buffer[0].numel() * buffer.element_size() for buffer in buffers)


def check_memory(buffers: Sequence[Any], tokens: int) -> None:
    """:raises OptionError: if this machine has not got the host memory."""
    import psutil

    need = tokens * token_bytes(buffers)
    free = psutil.virtual_memory().available
    if need > 0.9 * free:
        raise OptionError(
            f"--feather-park-host-tokens is {tokens}, which takes {need / 1e9:.1f} GB of host memory, and "
            f"{free / 1e9:.1f} GB are available. Give fewer."
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
