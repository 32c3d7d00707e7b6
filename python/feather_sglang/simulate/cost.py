"""What a step of the simulated engine takes. Every profile is a model: nothing here was measured on a GPU.

``CPU`` is an early fit of a decode step on two x86-64 cores (6% median error; the price of prefill is assumed), which
``feather bench gates`` keeps; the profile ``cpu`` (``profiles.py``) was fitted later. The GPU profiles are a roofline
with assumed constants: a step reads the weights once and then KV, from DRAM or from L2, and takes as long as the
slowest of DRAM, L2 and arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Batch(NamedTuple):
    """The rows of a step. KV in tokens."""

    rows: int
    total_kv: int
    distinct_kv: int
    shared_kv: int
    """What two rows or more hold, counted once."""
    longest_kv: int
    reuse_distance: float
    """KV tokens between two reads of a shared token, rows interleaved at random; see ``pool.Pool.reuse_distance``."""


class Cost(Protocol):
    """Seconds of a step."""

    def decode(self, batch: Batch) -> float: ...
    def prefill(self, computed: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """``base + row * B + total * T + distinct * U`` seconds, and where a cache is given the price of missing it.

    :param reread: seconds for each token that is read again and missed: ``reread * (T - U)``, once the reuse distance
        exceeds ``cache_tokens``. The L2 knee: sharp, as with least recently used replacement.
    :param by_family: rows are sorted by family, so that a prefix is read again by the next row.
    """

    base: float
    row: float
    total: float
    distinct: float
    prefill_base: float
    prefill_token: float
    reread: float = 0.0
    cache_tokens: float = 0.0
    by_family: bool = True

    def decode(self, batch: Batch) -> float:
        rows, total, distinct = batch.rows, batch.total_kv, batch.distinct_kv
        seconds = self.base + self.row * rows + self.total * total + self.distinct * distinct
        if self.reread:
            distance = total / rows if self.by_family else batch.reuse_distance
            if distance > self.cache_tokens:
                seconds += self.reread * (total - distinct)
        return seconds

    def prefill(self, computed: int) -> float:
        return self.prefill_base + self.prefill_token * computed


CPU = Linear(0.0405, 0.40e-3, 0.215e-6, 2.69e-6, prefill_base=0.0405, prefill_token=0.6e-3)
"""155M model, two cores, an attention that reads shared KV once."""

KNEE = Linear(0.018, 20e-6, 0.03e-6, 0.15e-6, 0.018, 0.06e-3, reread=0.12e-6, cache_tokens=11_700, by_family=False)
"""An 8B model on a GPU with 96 MB of L2 (half of it usable for KV: 11,700 tokens of a layer), linearised; assumed."""


class Gpu(NamedTuple):
    """Constants of a device; all but the sizes assumed."""

    bandwidth: float
    """Bytes a second from DRAM that are achieved: 92% of the peak."""
    l2_bytes: float
    l2_bandwidth: float
    flops: float
    """Dense bf16 operations a second that are achieved: 70% of the peak."""


GPUS = {
    "a100": Gpu(0.92 * 2039e9, 40e6, 4.5e12, 0.7 * 312e12),
    "rtx6000ada": Gpu(0.92 * 960e9, 96e6, 4.5e12, 0.7 * 364e12),
    "h200": Gpu(0.92 * 4800e9, 50e6, 6.5e12, 0.7 * 989e12),
}


class Model(NamedTuple):
    """What a step reads and computes of a model, in bf16."""

    parameters: float
    weights: float
    """Parameters read in a step (without the embedding)."""
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 2


LLAMA_8B = Model(8.03e9, 7.50e9, 32, 32, 8, 128)


@dataclass(frozen=True, slots=True)
class Roofline:
    """A step on a GPU: GEMMs, then attention, each as slow as its slowest resource.

    The layers' KV is used one after the other, so what competes for L2 is the KV of one layer. A shared token that is
    read again ``w`` bytes later is missed with probability ``max(0, 1 - C / w)`` (random replacement), where C is half
    of L2 (assumed). With rows sorted by family w is the KV of one row; in order of admission rows of different families
    are taken to be interleaved at random, the pessimistic end.

    :param shares: an attention kernel that reads shared KV once (Hydragen, cascade): then order is without effect.
    """

    gpu: Gpu
    model: Model = LLAMA_8B
    by_family: bool = True
    shares: bool = False
    usable_l2: float = 0.5
    launch: float = 0.3e-3
    """Seconds of a step outside the kernels."""

    def decode(self, batch: Batch) -> float:
        gpu, model, rows = self.gpu, self.model, batch.rows
        total, distinct = batch.total_kv * model.kv_bytes, batch.distinct_kv * model.kv_bytes
        gemms = max(2 * model.weights / gpu.bandwidth, 2 * model.weights * rows / gpu.flops)
        arithmetic = 4 * model.layers * model.heads * model.head_dim * batch.total_kv / gpu.flops
        if self.shares:
            return gemms + max(distinct / gpu.bandwidth, arithmetic) + self.launch
        distance = batch.total_kv / rows if self.by_family else batch.reuse_distance
        competing = distance * model.kv_bytes / model.layers
        missed = max(0.0, 1 - self.usable_l2 * gpu.l2_bytes / competing) if competing else 0.0
        dram = distinct + missed * (total - distinct)
        return gemms + max(dram / gpu.bandwidth, total / gpu.l2_bandwidth, arithmetic) + self.launch

    def prefill(self, computed: int) -> float:
        """Weights or arithmetic of the GEMMs; the attention over the prefix is left out."""
        weights = 2 * self.model.weights
        return max(weights / self.gpu.bandwidth, weights * computed / self.gpu.flops) + self.launch


class Drift:
    """One cost for the first ``steps`` decode steps, then another: the load of the device, or the kernel, changes."""

    def __init__(self, before: Cost, after: Cost, steps: int) -> None:
        self._cost, self._after = before, after
        self._left = steps

    def decode(self, batch: Batch) -> float:
        if self._left == 0:
            self._cost = self._after
        self._left -= 1
        return self._cost.decode(batch)

    def prefill(self, computed: int) -> float:
        return self._cost.prefill(computed)
