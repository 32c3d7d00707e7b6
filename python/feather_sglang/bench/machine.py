"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from feather_sglang import __version__
from feather_sglang.bench.results import Circumstances


def here(command: Sequence[str], workload: str, **more: str) -> Circumstances:
    """Of what this process does, here and now.

    :param command: the words after ``feather``.
    :param more: versions of what is not among ``versions``.
    """
    return Circumstances(shlex.join(["feather", *command]), machine(), versions() | more, workload)


def machine() -> dict[str, Any]:
    """The machine, without its name: ``cpu``, ``cores`` (those this process may use), ``memory_gib``, ``accelerator``
    (None: none), ``system``, ``load`` (average of the last minute)."""
    import torch

    accelerator = None
    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        module = torch.get_device_module(kind)
        accelerator = f"{torch.accelerator.device_count()} x {module.get_device_name()}"
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "accelerator": accelerator,
        "system": f"{platform.system()} {platform.machine()}",
        "load": round(os.getloadavg()[0], 2),
    }


def cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> dict[str, str]:
    """Of Python and of the distributions that matter."""
    return {
        "python": platform.python_version(),
        "feather-sglang": __version__,
        "sglang": version("sglang"),
        "torch": version("torch"),
    }


def in_words(circumstances: Circumstances) -> str:
    """One line for tables and pictures."""
    machine, versions = circumstances.machine, circumstances.versions
    accelerator = f", {machine['accelerator']}" if machine["accelerator"] else ""
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB{accelerator}; "
        f"SGLang {versions['sglang']}, PyTorch {versions['torch']}"
    )


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
