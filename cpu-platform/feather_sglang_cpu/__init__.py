"""SGLang on any CPU: the platform plugin ``feather_cpu``.

SGLang calls ``activate`` through the entry point group ``sglang.srt.platforms``. The module imports neither torch nor
sglang by itself.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points

NAME = "feather_cpu"
"""The entry point's name, to be given in ``SGLANG_PLATFORM`` to insist on this platform."""

GROUP = "sglang.srt.platforms"


def activate() -> str | None:
    """The dotted path of the platform class, or None to stand back; the contract of SGLang's platform plugins.

    Named in ``SGLANG_PLATFORM`` it never stands back; unnamed, whenever ``why_not`` finds a reason.
    """
    if os.environ.get("SGLANG_PLATFORM") != NAME and why_not() is not None:
        return None
    return f"{__name__}.{_fitting_class()}"


def why_not() -> str | None:
    """Why the platform stands back when nobody names it, in one clause; None: it does not."""
    return claimed() or accelerator()


def claimed() -> str | None:
    """Who else is to serve on this machine, in one clause; None: nobody was asked."""
    if os.environ.get("SGLANG_USE_CPU_ENGINE"):
        return "SGLANG_USE_CPU_ENGINE is set: SGLang's own CPU engine was asked for"
    if others := sorted(point.name for point in entry_points(group=GROUP) if point.name != NAME):
        return f"another platform plugin is installed: {', '.join(others)}"
    return None


def accelerator() -> str | None:
    """The accelerator that PyTorch finds, in one clause; None: there is none. Imports torch."""
    import torch

    if torch.accelerator.is_available():
        return f"PyTorch finds an accelerator: {torch.accelerator.current_accelerator()}"
    return None


def _fitting_class() -> str:
    from sglang.srt.platforms.interface import SRTPlatform

    # 0.5.20 and 0.5.21 ask every platform for its own memory pools.
    return "platform.CpuPlatform" if hasattr(SRTPlatform, "get_kv_pool_cls") else "before_0_5_22.CpuPlatform"
