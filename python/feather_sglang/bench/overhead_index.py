"""The chunked hash tree on the same queue, through the extension module, as the scheduler core calls it."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from feather_sglang._cht import Index
from feather_sglang.core.settings import Settings

PLENTY = 1 << 40
NAMESPACE = (None, None, None)


class Ours:
    """A waiting queue in an index that remembers the prefixes of its families as cached."""

    def __init__(self, prefixes: Iterable[array[int]], prompts: Iterable[array[int]]) -> None:
        settings = Settings()
        self._index = Index(
            chunk_size=settings.chunk_size,
            page_size=settings.page_size,
            order=settings.order,
            aging=settings.aging,
            barrier_min=settings.barrier_min,
            max_wait_tokens=PLENTY,
            kv_capacity=PLENTY,
            hash_key=(1, 2),
        )
        self._next = 0
        for prefix in prefixes:
            id = self._insert(prefix)
            self._index.activate(id)
            self._index.publish(id, len(prefix), False)
            self._index.leave(id, True)
        before = self._index.stats()["bytes"]
        last: array[int] = array("q", [0])
        for prompt in prompts:
            self._insert(prompt)
            last = prompt
        self._last = last
        self.waiting = self._index.stats()["waiting"]
        self.bytes_per_request = (self._index.stats()["bytes"] - before) / self.waiting

    def form(self, rows: int) -> int:
        """Names a batch, in one call; how many."""
        named, *_ = self._index.plan(now=0, kv_tokens=PLENTY, rows=rows, prefill_tokens=PLENTY, idle=False)
        return len(named)

    def undo(self) -> None:
        """Takes it back."""
        self._index.undo(0)

    def best(self) -> None:
        self._index.best()

    def insert(self) -> None:
        """One more prompt, its tokens in the processor's cache."""
        self._insert(self._last)

    def remove(self) -> None:
        """The one that was inserted last."""
        self._index.leave(self._next - 1, False)

    def _insert(self, prompt: array[int]) -> int:
        id = self._next
        self._index.insert(
            id,
            [prompt],
            length=len(prompt),
            arrival=(0, id),
            reserve=128,
            namespace=NAMESPACE,
            shareable=len(prompt),
            leads=True,
        )
        self._next += 1
        return id
