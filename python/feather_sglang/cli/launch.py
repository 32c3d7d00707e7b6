"""The server's process of ``feather serve``: fills in the defaults, then is ``python -m sglang.launch_server``."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import runpy
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from feather_sglang.cli import model, server
from feather_sglang.cli.arguments import Arguments
from feather_sglang.cli.errors import UsageError

_CPU_OPTIONS = {
    "device": "cpu",
    "disable-cuda-graph": None,
    "max-total-tokens": "65536",
    "sleep-on-idle": None,
}
# More than one thread per process is slower as soon as another process wants the core.
_CPU_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS": "0"}


def serve_on_cpu(device: str | None) -> bool:
    """Whether to serve on the platform ``feather_cpu``; ``device``: what the user asked for. Imports torch.

    :raises UsageError: if it is needed and not installed.
    """
    if device not in (None, "cpu") or os.environ.get("SGLANG_USE_CPU_ENGINE"):
        return False
    if find_spec("feather_sglang_cpu") is None:
        import torch

        if torch.accelerator.is_available() and device is None:
            return False
        raise UsageError(
            "SGLang cannot serve on this machine's CPU by itself: `pip install --no-deps feather-sglang-cpu`"
        )
    import feather_sglang_cpu as cpu

    if named := os.environ.get("SGLANG_PLATFORM"):
        return named == cpu.NAME
    return cpu.claimed() is None and (device == "cpu" or cpu.accelerator() is None)


_NOT_PLAIN = ("sliding_window", "kv_lora_rank", "attn_logit_softcapping", "is_encoder_decoder", "layer_types")
"""What a model's configuration says if its attention is not plain, where feather-cascade would refuse it."""


def attention_on_cpu(arguments: Arguments) -> str:
    """The attention backend by default: feather-cascade, where the model's configuration is here and lets it."""
    if "speculative-algorithm" in arguments.given:
        return "torch_native"
    if arguments.model_path is None:
        return "feather-cascade"
    try:
        config = json.loads((Path(arguments.model_path) / "config.json").read_text())
        plain = not any(config.get(field) for field in _NOT_PLAIN)
    except (OSError, ValueError, AttributeError):
        return "torch_native"
    return "feather-cascade" if plain else "torch_native"


def main(argv: list[str]) -> None:
    """Become SGLang's server.

    :raises UsageError: if there is nothing to serve the model on, or the embedded model cannot be had.
    """
    arguments = Arguments.read(argv)
    defaults: dict[str, str | None] = {"schedule-policy": "feather"}
    if serve_on_cpu(arguments.device):
        import feather_sglang_cpu as cpu

        defaults |= _CPU_OPTIONS | {"attention-backend": attention_on_cpu(arguments)}
        for name, value in (_CPU_ENVIRONMENT | {"SGLANG_PLATFORM": cpu.NAME}).items():
            os.environ.setdefault(name, value)
    if arguments.model_path is None:
        defaults["model-path"] = str(model.embedded_model(say=lambda line: print(f"feather: {line}", flush=True)))
        defaults["served-model-name"] = model.NAME
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # all of it is here
    argparse.ArgumentParser.error = _one_line  # type: ignore[method-assign, assignment]
    warnings.filterwarnings("ignore", message="'python -m sglang.launch_server' is still supported")
    sys.argv = [server.LAUNCHER, *arguments.with_defaults(defaults)]
    runpy.run_module(server.LAUNCHER, run_name="__main__")


def _one_line(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """In place of argparse's own, which would print SGLang's several hundred options first."""
    advice = "`python -m sglang.launch_server --help` lists what SGLang takes"
    unknown = re.fullmatch(r"unrecognized arguments: (--[\w-]+).*", message)
    if unknown and (close := difflib.get_close_matches(unknown[1], parser._option_string_actions, n=1)):
        advice = f"did you mean {close[0]}? {advice}"
    parser.exit(2, f"feather: error: {message}: {advice}\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UsageError as error:
        print(f"feather: error: {error}", file=sys.stderr)
        sys.exit(2)
