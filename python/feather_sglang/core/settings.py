"""What a scheduler core is made with. Validated here, for every adapter."""

from __future__ import annotations

import math
from dataclasses import dataclass

ORDERS = ("missing", "held")
DECODES = ("all", "aligned", "families")
GATES = ("never", "static", "ucb", "q", "model")
BATCHING = ("offline", "refill")
"""Gates for batch jobs."""
LENGTHS = ("request", "family", "max-tokens")
MOST_LANES = 64


@dataclass(frozen=True, slots=True)
class Settings:
    """Equal on every rank. Raises ValueError with one line that names the field, what was expected and what came."""

    order: str = "missing"
    """``missing``: fewest tokens that no running row holds, plus ageing (the Feather paper's order).
    ``held``: the oldest request, unless running rows hold at least ``barrier_min`` tokens more of another one.
    ``feather bench orders`` chose the default, and its ageing (docs/design/orders.md)."""
    gate: str = "never"
    gate_seed: int = 0
    """Of the exploration of gates that learn."""
    refill_rows: int = 16
    """Gate ``refill``: rows that must be free before requests are admitted."""
    lanes: int = 1
    """Bins of predicted output length, of which the shortest is served first; 1: none."""
    length: str = "family"
    """What predicts it: ``Request.predicted_new``, the outputs of the same prefix family, or ``Request.max_new``."""
    chunk_size: int = 64
    """Tokens a chunk; a multiple of ``page_size``."""
    page_size: int = 1
    aging: float = 0.2
    """Order ``missing``: tokens of advantage for each token scheduled since a request arrived. 0: none."""
    barrier_min: int = 256
    """Tokens that waiting must save, or that running rows must hold more, for a request to leave arrival order."""
    barrier: bool = True
    """Whether requests wait for a prefix that is being prefilled; off only to measure what that brings."""
    max_wait_tokens: int = 600_000
    """Scheduled tokens after which a waiting request is served before all that arrived later, whatever else holds; only
    those that came together with it, within an eighth of this, go by the order (``cht-rs/src/bound.rs``)."""
    kv_capacity: int = 1 << 20
    """Tokens of the engine's KV pool."""
    decode: str = "all"
    """Which rows decode: all that fit, those of similar KV length, or one prefix family after the other."""
    align_rows: int = 36
    """``aligned``: rows of a batch, at least."""
    align_share: float = 0.4
    """``aligned``: of the KV pool that a batch may hold."""
    hash_key: tuple[int, int] = (0, 0)
    """Two unsigned 64-bit halves of the key of the chunk hashes."""

    def __post_init__(self) -> None:
        _choice("order", self.order, ORDERS)
        _choice("gate", self.gate, (*GATES, *BATCHING))
        _choice("decode", self.decode, DECODES)
        _choice("length", self.length, LENGTHS)
        _whole("lanes", self.lanes, 1)
        if self.lanes > MOST_LANES:
            raise ValueError(f"lanes {self.lanes}: expected at most {MOST_LANES}")
        _whole("refill_rows", self.refill_rows, 1)
        _whole("align_rows", self.align_rows, 1)
        if isinstance(self.align_share, bool) or not (
            isinstance(self.align_share, int | float) and 0 < self.align_share <= 1
        ):
            raise ValueError(f"align_share {self.align_share!r}: expected a number above 0, and at most 1")
        _whole("page_size", self.page_size, 1)
        _whole("chunk_size", self.chunk_size, 1)
        if self.chunk_size % self.page_size:
            raise ValueError(
                f"chunk_size {self.chunk_size}: expected a multiple of the page size ({self.page_size}), "
                f"such as {default_chunk_size(self.page_size)}"
            )
        if isinstance(self.aging, bool) or not (isinstance(self.aging, int | float) and 0 <= self.aging < math.inf):
            raise ValueError(f"aging {self.aging!r}: expected a number of at least 0")
        _whole("gate_seed", self.gate_seed, 0)
        _whole("barrier_min", self.barrier_min, 0)
        _whole("max_wait_tokens", self.max_wait_tokens, 0)
        _whole("kv_capacity", self.kv_capacity, 1)


def default_chunk_size(page_size: int) -> int:
    """The smallest multiple of the page size that is at least 64 tokens."""
    return page_size * -(-64 // page_size)


def _choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} {value!r}: expected one of {', '.join(choices)}")


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} {value!r}: expected a whole number of at least {least}")
