"""Gates: when to stop filling the batch. A gate sees the batch and the planned candidates and says how many to take."""

from __future__ import annotations

from collections.abc import Callable

from feather_sglang.core.gates.batching import Offline, Refill
from feather_sglang.core.gates.fixed import Fixed
from feather_sglang.core.gates.guard import Guard
from feather_sglang.core.gates.model import Model
from feather_sglang.core.gates.never import Never
from feather_sglang.core.gates.q import Q
from feather_sglang.core.gates.static import Static
from feather_sglang.core.gates.ucb import Ucb
from feather_sglang.core.interface import Gate
from feather_sglang.core.settings import Settings

_GATES: dict[str, Callable[[int], Gate]] = {
    "never": lambda seed: Never(),
    "static": lambda seed: Static(),
    "ucb": Ucb,
    "q": Q,
    "model": Model,
}


def gate_of(settings: Settings) -> Gate:
    """The gate that the settings name, as servers use it: one that learns is watched by ``guard.Guard``."""
    if settings.gate == "offline":
        return Offline()
    if settings.gate == "refill":
        return Refill(settings.refill_rows)
    gate = make_gate(settings.gate, settings.gate_seed)
    return gate if isinstance(gate, Fixed) else Guard(gate)


def make_gate(name: str, seed: int = 0) -> Gate:
    """The gate called ``name`` (one of ``settings.GATES``). ``seed``: of its exploration, equal on all ranks."""
    return _GATES[name](seed)
