"""The tail of a request: its KV behind what SGLang's radix tree owns, or behind its first page.

While it is parked the request stays a row of the running batch. It keeps its ``req_to_token`` row, its lock on the
tree, its last token in SGLang's relay and its sampling state, so it goes on as if it had not been away.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch
from sglang.srt.mem_cache.common import evict_from_tree_cache, release_kv_cache

from feather_sglang.sglang.parking.slab import HostSlab


class Tail(NamedTuple):
    """KV on the host."""

    begin: int
    """In the slab."""
    low: int
    high: int
    """Positions in the request."""
    retractions: int
    """The request's at the time: after another one it is computed anew, and this is void."""


class Tails:
    """The parked tails of one scheduler."""

    def __init__(self, scheduler: Any, slab: HostSlab) -> None:
        self.slab = slab
        self.counts: Counter[str] = Counter()
        self._scheduler = scheduler
        self._page: int = scheduler.page_size
        self._parked: dict[Any, Tail] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, req: Any) -> bool:
        return req in self._parked

    @property
    def tokens(self) -> int:
        """Device tokens that those who are parked need to come back, in whole pages."""
        return sum(self._paged(tail.high - tail.low) for tail in self._parked.values())

    def length(self, req: Any) -> int:
        """KV tokens of a request, wherever they are."""
        tail = self._parked.get(req)
        return int(req.kv.kv_committed_len if tail is None else tail.high)

    def private(self, req: Any) -> int:
        """Device tokens that parking it frees, or that bringing it back needs."""
        tail = self._parked.get(req)
        low, high = (self._low(req.kv), req.kv.kv_committed_len) if tail is None else (tail.low, tail.high)
        return self._paged(max(high - low, 0))

    def sweep(self) -> None:
        """Let go of the tails of requests that ended, or were retracted by a pause or for want of memory."""
        for req, tail in list(self._parked.items()):
            if tail.retractions != req.retraction_count or req.finished() or not req.kv.holds_kv:
                self._drop(req)

    def park(self, req: Any) -> bool:
        """Move the tail of a settled request to the host; False: there is no room."""
        kv = req.kv
        low, high = self._low(kv), kv.kv_committed_len
        begin = self.slab.ranges.take(high - low)
        if begin is None:
            return False
        slots = self._scheduler.req_to_token_pool.req_to_token[kv.req_pool_idx, low:high].to(torch.int64)
        self.slab.save(begin, slots)
        self._scheduler.tree_cache.free_kv_row(kv, [(low, high)])
        kv.kv_allocated_len = kv.kv_committed_len = low
        self._parked[req] = Tail(begin, low, high, req.retraction_count)
        self.counts["parks"] += 1
        self.counts["parked_tokens"] += high - low
        return True

    def resume(self, req: Any) -> bool:
        """Bring the tail of a parked request back; False: the pool refused."""
        scheduler, kv, tail = self._scheduler, req.kv, self._parked[req]
        size, need = tail.high - tail.low, self._paged(tail.high - tail.low)
        evict_from_tree_cache(scheduler.tree_cache, need)
        slots = scheduler.token_to_kv_pool_allocator.alloc(need)
        if slots is None:
            return False
        slots = slots[:size]
        self.slab.load(tail.begin, slots)
        pool = scheduler.req_to_token_pool
        pool.write((kv.req_pool_idx, slice(tail.low, tail.high)), slots.to(torch.int32))
        kv.kv_allocated_len = kv.kv_committed_len = tail.high
        self._drop(req)
        self.counts["resumes"] += 1
        return True

    def end(self, req: Any) -> None:
        """End a parked request that is being aborted: what SGLang does with a finished row, without another step."""
        scheduler = self._scheduler
        req.finished_reason, req.to_finish = req.to_finish, None
        req.finished_len = len(req.output_ids)
        self._drop(req)
        if req.grammar is not None:
            req.grammar.finished = True
        if req.multimodal_inputs is not None and req.session is None:
            req.multimodal_inputs.release_features()
        release_kv_cache(req, scheduler.tree_cache, checkpoint=False)
        req.time_stats.set_completion_time()
        scheduler.output_streamer.stream_output([req], req.return_logprob)
        self.counts["ended_parked"] += 1

    def _low(self, kv: Any) -> int:
        """Where the tail begins. Of a row of which the tree owns nothing a page stays: SGLang takes one that has no KV
        allocated for one that was released, and ends where it is released again."""
        return int(kv.cache_protected_len or self._page)

    def _drop(self, req: Any) -> None:
        tail = self._parked.pop(req)
        self.slab.ranges.give(tail.begin, tail.high - tail.low)

    def _paged(self, tokens: int) -> int:
        return -(-tokens // self._page) * self._page


def settled(req: Any) -> bool:
    """Whether nothing of a row is in flight: its last token is known, and the KV of all before it is written."""
    return bool(req.output_ids and len(req.origin_input_ids) + len(req.output_ids) - 1 == req.kv.kv_committed_len)
