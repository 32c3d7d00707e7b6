"""What the backend cannot do, found out before a server is up."""

from __future__ import annotations

from typing import Any

from feather_sglang.sglang.options import OptionError

_ON_CPU = "Give --attention-backend torch_native."


class UnsupportedError(OptionError):
    """The model or an option does not go with ``--attention-backend feather-cascade``; one line, with what to do."""


def refuse(what: str, instead: str) -> None:
    """:raises UnsupportedError: always."""
    raise UnsupportedError(f"--attention-backend feather-cascade does not support {what}. {instead}")


def check_arguments(server_args: Any, resolved: Any) -> None:
    """What the launcher can find out.

    :param resolved: the same arguments, as SGLang resolved them.
    :raises UnsupportedError: if there is something that the backend cannot do.
    """
    from sglang.srt.arg_groups.model_override_base import model_config_of

    if resolved.device != "cpu":
        return
    if resolved.speculative_algorithm is not None:
        refuse("speculative decoding on the CPU", "Leave out --speculative-algorithm.")
    if resolved.kv_cache_dtype not in ("auto", "bfloat16", "bf16", "float16", "float32"):
        refuse(f"a KV cache of {resolved.kv_cache_dtype} on the CPU", "Leave out --kv-cache-dtype.")
    model = model_config_of(server_args)
    if model.attention_arch.name != "MHA":
        refuse("multi-head latent attention (MLA)", _ON_CPU)
    if model.is_encoder_decoder:
        refuse("encoder-decoder models (cross-attention)", _ON_CPU)
    if model.is_hybrid_swa or (model.sliding_window_size or -1) > -1:
        refuse("sliding-window attention on the CPU", _ON_CPU)


def check_model(runner: Any, instead: str) -> None:
    """Whether every attention layer of a loaded model is plain attention over one pool of keys and values.

    :param runner: SGLang's ``ModelRunner``.
    :param instead: what to do otherwise.
    :raises UnsupportedError: if not.
    """
    from sglang.srt.layers.radix_attention import RadixAttention

    if runner.use_mla_backend:
        refuse("multi-head latent attention (MLA)", instead)
    for layer in runner.model.modules():
        if not isinstance(layer, RadixAttention):
            continue
        if layer.is_cross_attention:
            refuse("encoder-decoder models (cross-attention)", instead)
        if (layer.sliding_window_size or -1) > -1:
            refuse("sliding-window attention on this device", instead)
        if layer.logit_cap > 0:
            refuse("a cap on attention logits (soft cap) on this device", instead)
        if layer.qk_head_dim != layer.v_head_dim:
            refuse(f"keys and values of different sizes ({layer.qk_head_dim} and {layer.v_head_dim})", instead)
