"""What is simulated: a machine with a model, as costs of steps, rows and a KV pool; each constant with its origin.

GPU profiles are Llama-3-8B shapes in bf16 on a roofline (``cost.Roofline``). The KV pool is what 90% of the memory
leaves beside the weights, rounded down. Rows of every policy are taken to be sorted by family, as this plugin has them:
a policy of SGLang's own is not charged for leaving them as admitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from feather_sglang.simulate.cost import GPUS, LLAMA_8B, Cost, Linear, Roofline
from feather_sglang.simulate.engine import Machine


class Constant(NamedTuple):
    """One number of a profile."""

    name: str
    value: float
    unit: str
    origin: str
    """``assumed``, ``measured`` or ``derived``, and on or from what."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A machine that can be simulated."""

    name: str
    what: str
    cost: Cost
    rows: int
    kv_tokens: int
    context: int
    """Most tokens of one request."""
    constants: tuple[Constant, ...]
    prefill_tokens: int = 8192

    def machine(self, level_tokens: int) -> Machine:
        """:param level_tokens: of the trace."""
        return Machine(self.rows, self.kv_tokens, self.prefill_tokens, level_tokens)

    def said(self) -> str:
        """One line for tables and pictures."""
        return f"{self.name}: {self.what}, {self.rows} rows, {self.kv_tokens:,} KV tokens"


def linear(name: str, what: str, cost: Linear, origin: str, prefill: str, machine: str, **size: int) -> Profile:
    """A profile of a fitted cost.

    :param origin: of the price of a decode step.
    :param prefill: of the price of prefill.
    :param machine: of its size.
    :param size: ``rows``, ``kv_tokens``, ``context`` and ``prefill_tokens``.
    """
    constants = (
        Constant("base", cost.base, "s a decode step", origin),
        Constant("row", cost.row, "s a row", origin),
        Constant("total", cost.total, "s a KV token", origin),
        Constant("distinct", cost.distinct, "s a distinct KV token", origin),
        Constant("prefill_base", cost.prefill_base, "s a prefill pass", prefill),
        Constant("prefill_token", cost.prefill_token, "s a computed token", prefill),
        *_size(size["rows"], size["kv_tokens"], size["context"], machine),
    )
    return Profile(name, what, cost, constants=constants, **size)


_GPU_NAMES = {"a100": ("NVIDIA A100 80 GB", 80e9), "rtx6000ada": ("NVIDIA RTX 6000 Ada", 48e9)}
_GPU_NAMES["h200"] = ("NVIDIA H200", 141e9)


def _roofline(name: str, *, shares: bool) -> Profile:
    gpu, (device, memory) = GPUS[name], _GPU_NAMES[name]
    cost = Roofline(gpu, shares=shares)
    left = 0.9 * memory - 2 * LLAMA_8B.parameters
    kernel = "an attention that reads shared KV once" if shares else "a plain attention"
    constants = (
        Constant("bandwidth", gpu.bandwidth, "B/s", "assumed: 92% of the data sheet's"),
        Constant("l2_bytes", gpu.l2_bytes, "B", "data sheet"),
        Constant("l2_usable", cost.usable_l2, "share", "assumed"),
        Constant("l2_bandwidth", gpu.l2_bandwidth, "B/s", "assumed"),
        Constant("flops", gpu.flops, "bf16/s", "assumed: 70% of the data sheet's"),
        Constant("launch", cost.launch, "s a step", "assumed"),
        Constant("weights", 2 * LLAMA_8B.weights, "B a step", "Llama-3-8B"),
        Constant("kv_bytes", LLAMA_8B.kv_bytes, "B a token", "Llama-3-8B"),
        *_size(256, int(left / LLAMA_8B.kv_bytes) // 100_000 * 100_000, 131_072, "assumed"),
    )
    sizes = {constant.name: int(constant.value) for constant in constants[-3:]}
    return Profile(
        name + ("-sharing" if shares else ""),
        f"{device}, Llama-3-8B in bf16, {kernel}",
        cost,
        constants=constants,
        **sizes,
    )


def _size(rows: int, kv_tokens: int, context: int, origin: str) -> tuple[Constant, ...]:
    return (
        Constant("rows", rows, "", origin),
        Constant("kv_tokens", kv_tokens, "tokens", origin),
        Constant("context", context, "tokens", origin),
    )


_SMOLLM2 = Linear(58.2e-3, 1.52e-3, 0.556e-6, 9.76e-6, prefill_base=82.2e-3, prefill_token=2.14e-3)
"""Of ``feather serve`` with one thread, 2026-11-30, under three workloads (``bench/README.md``)."""

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        *(_roofline(name, shares=shares) for shares in (False, True) for name in ("h200", "a100", "rtx6000ada")),
        linear(
            "cpu",
            "a core of an AMD EPYC, SmolLM2-135M in float32, an attention that reads shared KV once",
            _SMOLLM2,
            "measured: feather calibrate, 331 decode steps, median error 3%",
            "measured: feather calibrate, 39 passes, median error 18%",
            "as recorded",
            rows=32,
            kv_tokens=65_536,
            context=8_192,
            prefill_tokens=4_096,
        ),
    )
}
"""By name, the default first."""
DEFAULT = next(iter(PROFILES))
