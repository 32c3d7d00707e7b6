"""Gates: when to stop filling the batch. A gate sees the batch and the planned candidates and says how many to take."""

from __future__ import annotations

from collections.abc import Callable

from feather_sglang.core.gates.never import Never
from feather_sglang.core.gates.static import Static
from feather_sglang.core.interface import Gate

_GATES: dict[str, Callable[[], Gate]] = {"never": Never, "static": Static}


def make_gate(name: str) -> Gate:
    """The gate called ``name`` (one of ``settings.GATES``)."""
    return _GATES[name]()
