"""The ranks that share one waiting queue. Each runs a scheduler of its own, and all must run the same batches.

What is equal on all ranks is decided on each of them; what is not (times, a key) comes from the leader (``ticks.py``).
Nothing on the way to a batch waits for another rank. Only after a failure the ranks compare, through the store by which
they found each other: one that failed alone cannot know what the others decided, and ends, and with it the server.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

PATIENCE = 30.0
"""Seconds that a rank waits for the others to report the failure that it had."""

_POLL = 0.005


class DisagreementError(RuntimeError):
    """Ranks decided differently, or one of them failed alone: what they compute together would be wrong."""


class Store(Protocol):
    """Of ``torch.distributed.Store``: a counter that all ranks see."""

    def add(self, key: str, amount: int) -> int: ...


class Ranks:
    """:param size: how many they are.
    :param name: which group of the server; unique where groups share a store.
    :param store: None only for a single rank.
    :param checker: SGLang's rank consensus checker, if it is on.
    """

    def __init__(self, size: int, name: str = "", store: Store | None = None, checker: Any = None) -> None:
        self.size = size
        self._name = name
        self._store = store
        self._checker = checker

    @classmethod
    def of(cls, scheduler: Any) -> Ranks:
        """The ranks that decide with this scheduler."""
        from sglang.srt.runtime_context import get_parallel
        from sglang.srt.utils import rank_consensus_checker

        parallel = scheduler.__dict__.get("ps") or get_parallel()  # 0.5.20 keeps the ranks with the scheduler
        size = parallel.pp_size * parallel.attn_tp_size * parallel.attn_cp_size
        if size == 1:
            return cls(1)
        from torch.distributed.distributed_c10d import _get_default_store

        checker = rank_consensus_checker if rank_consensus_checker.enabled() else None
        return cls(size, f"feather/{parallel.attn_dp_rank}", _get_default_store(), checker)

    def compare(self, decisions: tuple[int, int]) -> None:
        """Have SGLang's checker, if it is on, end the server where these differ from another rank's."""
        if self._checker is not None:
            self._checker.assert_same("feather: admissions and their digest: %s", decisions)

    def agree_on_failure(self, failure: str) -> None:
        """Return when every rank had this failure.

        :param failure: which one, and when: equal on ranks that fail alike.
        :raises DisagreementError: if one has not after ``PATIENCE`` seconds.
        """
        if self._store is None:
            return
        key = f"{self._name}/{failure}"
        failed, end = self._store.add(key, 1), time.monotonic() + PATIENCE
        while failed < self.size:
            if time.monotonic() > end:
                raise DisagreementError(
                    f"feather: the scheduler core failed on {failed} of {self.size} ranks ({failure}): they would run "
                    "different batches from here on, so the server ends. Start it again, and report this with the "
                    "traceback above."
                )
            time.sleep(_POLL)
            failed = self._store.add(key, 0)
