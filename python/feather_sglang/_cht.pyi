"""The chunked hash tree, in Rust. See ``cht-rs/src/lib.rs`` for the structure and ``plan.rs`` for the rule.

Ids are the caller's; lengths and budgets are tokens. A method that raises leaves the index as it was. An unknown id is
a KeyError; an id that is taken or in the wrong state, and a value out of range, a ValueError; what is not made of
integers a TypeError.
"""

from collections.abc import Sequence
from typing import Any, final

__all__ = ["Index", "Outputs", "build_info"]

@final
class Index:
    def __new__(
        cls,
        *,
        chunk_size: int,
        page_size: int,
        order: str,
        aging: float,
        barrier_min: int,
        max_wait_tokens: int,
        kv_capacity: int,
        hash_key: tuple[int, int],
    ) -> Index: ...
    def insert(
        self,
        id: int,
        segments: Sequence[Any],
        *,
        length: int,
        arrival: tuple[int, int],
        reserve: int = 0,
        namespace: Sequence[str | None] = ...,
        shareable: int | None = None,
        leads: bool = True,
        lane: int = 0,
    ) -> None:
        """A request enters the waiting queue; ``segments`` hold its tokens (array('q'), NumPy int64, lists of int)."""

    def insert_levels(
        self,
        id: int,
        levels: Any,
        *,
        level_tokens: int,
        length: int,
        arrival: tuple[int, int],
        reserve: int = 0,
        namespace: Sequence[str | None] = ...,
        leads: bool = True,
        lane: int = 0,
    ) -> None:
        """The same with ready-made cumulative hashes of ``level_tokens`` tokens each: the chunk size of the index."""

    def begin(self) -> None:
        """Starts a pass."""

    def follow(
        self, alive: Any, changed: Sequence[tuple[int, int, int, int, bool, Any, bool, int]], finished: Sequence[int]
    ) -> None:
        """Starts a pass with what the engine runs: ``alive``, the ids of all rows (integers, as tokens are given); what
        is new of some; those that left with their KV in the cache. Ids that are not known change nothing."""

    def activate(self, id: int) -> None:
        """The engine runs a waiting request that was not planned."""

    def publish(self, id: int, tokens: int, computing: bool) -> None:
        """``tokens`` of a running row can be reused now; ``computing``: it still prefills, and more will follow."""

    def grow(self, id: int, tokens: Any) -> None:
        """Output tokens of a running row."""

    def leave(self, id: int, whole: bool) -> bool:
        """It is gone; its KV stays cached, the whole of it or what was published. False: it was not known."""

    def forget(self) -> None:
        """The engine dropped its cache."""

    def set_max_wait(self, tokens: int) -> None:
        """Another ``max_wait_tokens``, from the next plan on."""

    def set_lane(self, id: int, lane: int) -> bool:
        """Another lane (0 to 63; lower ones are served first) for a request. False: it was not known."""

    def overdue_lane(self, now: int) -> int | None:
        """The lane of the oldest waiting request; None: none is past ``max_wait_tokens``."""

    def plan(
        self,
        *,
        now: int,
        kv_tokens: int,
        rows: int,
        prefill_tokens: int,
        idle: bool,
        chunked: bool = True,
        lane: int | None = None,
    ) -> tuple[list[tuple[int, int, int, int, int, int, int]], int, int, int, int, str]:
        """``(candidates, held, kept, skipped, overdue, end)``; see ``feather_sglang.core.interface.Candidate``."""

    def undo(self, keep: int) -> None:
        """Takes back all but the first ``keep`` candidates."""

    def settle(self, reused: Sequence[tuple[int, int]], refused: Sequence[int]) -> int:
        """What the engine did with the plan: ``reused`` pairs an admitted id with the tokens its match found. Returns
        the tokens that the admitted compute. Ids that are not known change nothing."""

    def best(self) -> tuple[int, int] | None:
        """The next request in order that is not held back, and its tokens that no running row holds."""

    def runs(self, id: int) -> bool:
        """Whether it is a running row."""

    def running(self) -> list[int]: ...
    def rows_by_family(self) -> tuple[list[int], list[int]]:
        """Running rows, siblings adjacent, and the published tokens each has in common with the one before it."""

    def families(self, most: int) -> tuple[list[tuple[int, int, int, int | None]], int, int, int]:
        """``(largest, waiting, running, alone)``: the ``most`` largest families as ``(waiting requests, running rows,
        tokens in common, id of the oldest waiting)``, how many families wait and run, and waiting requests without one.
        """

    def held_for(self) -> list[tuple[int, int]]:
        """``(row, requests held back for it)``."""

    def __contains__(self, id: int, /) -> bool: ...
    def stats(self) -> dict[str, Any]: ...
    def check_integrity(self) -> None:
        """Raises RuntimeError with the first invariant that does not hold."""

@final
class Outputs:
    """Output lengths of prefix families: a bounded table beside an index, which outlives its requests."""

    def __new__(cls) -> Outputs: ...
    def learn(self, index: Index, id: int, tokens: int) -> None:
        """A request finished with so many output tokens; told before it leaves the index."""

    def predict(self, index: Index, ids: Sequence[int]) -> list[int | None]:
        """For each request the median output of its deepest known family; None: none is known."""

def build_info() -> dict[str, str]:
    """``version``, ``profile`` ("release" or "debug"), ``target`` and ``hash`` (the path that hashing takes)."""
