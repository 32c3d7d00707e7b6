"""The tiny model with weights in a file, and LoRA adapters of it: SGLang loads none beside weights that it made up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from feather_sglang.bench.tiny_llama import CONFIG, VOCABULARY, write_model

RANK = 4


def adapter_settings(folder: Path, count: int, most: int) -> dict[str, Any]:
    """SGLang's arguments for so many adapters, at most ``most`` of them in a batch."""
    model = write_model(folder / "model")
    save_file(_random(_shapes(), 0), model / "model.safetensors")
    paths = [f"a{i}={_write_adapter(folder / f'adapter{i}', 1 + i)}" for i in range(count)]
    return {
        "model_path": str(model),
        "load_format": "safetensors",
        "enable_lora": True,
        "lora_paths": paths,
        "lora_backend": "torch_native",
        "max_loras_per_batch": most,
    }


def _shapes() -> dict[str, tuple[int, ...]]:
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    query, key = (CONFIG[name] * CONFIG["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    layer = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    return {
        "model.embed_tokens.weight": (VOCABULARY, hidden),
        "model.norm.weight": (hidden,),
        **{f"model.layers.0.{name}.weight": shape for name, shape in layer.items()},
    }


def _write_adapter(folder: Path, seed: int) -> Path:
    hidden, query = CONFIG["hidden_size"], CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    prefix = "base_model.model.model.layers.0.self_attn.o_proj"
    shapes = {f"{prefix}.lora_A.weight": (RANK, query), f"{prefix}.lora_B.weight": (hidden, RANK)}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_random(shapes, seed), folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "target_modules": ["o_proj"], "r": RANK, "lora_alpha": RANK, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def _random(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
