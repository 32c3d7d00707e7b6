"""A Llama model in a GGUF file, written out as the folder that Hugging Face's loaders (and SGLang) read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OUTSIDE_LAYERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_hugging_face_folder(source: Path, folder: Path) -> None:
    """Write configuration, tokenizer and weights (bfloat16) of the GGUF file ``source`` to ``folder``.

    Needs only packages that SGLang brings: gguf, torch, safetensors, transformers.

    :raises ValueError: for an architecture other than Llama's, or a tensor Llama does not have.
    """
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    reader = GGUFReader(source)
    if (architecture := _value(reader, "general.architecture")) != "llama":
        raise ValueError(f"{source.name} holds a model of the architecture {architecture!r}; only 'llama' is converted")
    weights = {name: torch.tensor(array, dtype=torch.bfloat16) for name, array in _weights(reader, source.name)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    special = {f"{role}_token_id": _value(reader, f"tokenizer.ggml.{key}_token_id") for role, key in _SPECIAL.items()}
    _write_json(folder / "generation_config.json", special)
    _write_json(
        folder / "config.json", _config(reader) | special | {"tie_word_embeddings": "lm_head.weight" not in weights}
    )
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)


_SPECIAL = {"bos": "bos", "eos": "eos", "pad": "padding"}


def _config(reader: Any) -> dict[str, Any]:
    heads = _value(reader, "llama.attention.head_count")
    hidden = _value(reader, "llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": _value(reader, "llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": _value(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _value(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _value(reader, "llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "max_position_embeddings": _value(reader, "llama.context_length"),
        "rope_theta": float(_value(reader, "llama.rope.freq_base")),
        # A float32 in the file: 1e-5 would otherwise read 9.999999747378752e-06.
        "rms_norm_eps": round(float(_value(reader, "llama.attention.layer_norm_rms_epsilon")), 9),
        "hidden_act": "silu",
    }


def _weights(reader: Any, source_name: str) -> Iterator[tuple[str, Any]]:
    """Each tensor under its Hugging Face name, as float32 in NumPy."""
    from gguf import dequantize

    heads = {
        "attn_q": _value(reader, "llama.attention.head_count"),
        "attn_k": _value(reader, "llama.attention.head_count_kv"),
    }
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type)
        if name := _OUTSIDE_LAYERS.get(tensor.name):
            yield name, array
            continue
        in_layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name)
        if in_layer is None or in_layer[2] not in _IN_LAYER:
            raise ValueError(f"{source_name} holds the tensor {tensor.name!r}, which a Llama model does not have")
        layer, part = in_layer.groups()
        if part in heads:
            array = _halves_apart(array, heads[part])
        yield f"model.layers.{layer}.{_IN_LAYER[part]}.weight", array


def _halves_apart(weight: Any, heads: int) -> Any:
    """Undo the rotary layout of GGUF, which stores the two halves of each head's rows alternately."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _value(reader: Any, key: str) -> Any:
    return reader.fields[key].contents()


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
