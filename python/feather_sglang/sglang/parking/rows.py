"""Which rows of the running batch decode in a pass: all of them, as SGLang would, unless there is a reason.

Everything that SGLang does to a running batch sees all rows, parked or not. Only the decode step itself is given a
batch of some of them (``batches``), which join the others again before anybody looks.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from feather_sglang.core.interface import Decode, Limits, Resident
from feather_sglang.core.parking import fit
from feather_sglang.sglang.parking import batches
from feather_sglang.sglang.parking.tails import Tails, settled
from feather_sglang.sglang.progress import PATIENCE

logger = logging.getLogger(__name__)

Choose = Callable[[Limits, Sequence[Resident]], Decode | None]


class Rows:
    """The rows of one scheduler.

    :param most: rows that may be parked at a time.
    :param choose: who decodes; None as its answer: whoever fits.
    :param link_tokens: see ``Limits``.
    :param always: whether it is asked in every pass, and not only when memory is short.
    """

    _current: weakref.ref[Rows] | None = None

    def __init__(
        self, scheduler: Any, tails: Tails, most: int, choose: Choose, *, link_tokens: int = 0, always: bool = False
    ) -> None:
        self.tails = tails
        self.steps = self.partial = 0
        """Decode passes, and those in which rows sat out."""
        self._scheduler = scheduler
        self._mixes = scheduler.is_mixed_chunk
        self._most = most
        self._choose = choose
        self._link_tokens = link_tokens
        self._always = always
        self._apart = False
        """Whether rows sat out since the batch was sorted."""
        self._still = 0
        """Passes since a row decoded."""
        Rows._current = weakref.ref(self)

    @classmethod
    def current(cls) -> Rows | None:
        """Of the scheduler of this process, for a hook on objects that do not know their scheduler."""
        return None if cls._current is None else cls._current()

    def decode(self, original: Callable[..., Any], batch: Any) -> Any:
        """One decode pass of a batch: what ``Scheduler.update_running_batch`` does, for the rows that go on."""
        tails = self.tails
        self.steps += 1
        if tails:
            self._end_aborted(batch)
            if batch.is_empty():
                return batch
        if not tails and not self._always and self._plenty(batch):
            return original(self._scheduler, batch)
        finishing = set(self._scheduler._reqs_finishing_inflight(batch))
        going_on = self._carry_out(batch, finishing)
        rows = going_on + self._ending(batch, finishing)
        if len(rows) == len(batch.reqs):
            if self._apart:
                batch.feather_sorted = ((), 0)  # rows that were put back are not where they belong
                self._apart = False
            return original(self._scheduler, batch)
        self.partial += 1
        if not rows:
            self._still += 1
            return None
        self._still = 0
        self._apart = True
        taken = batches.take(batch, rows)
        result = original(self._scheduler, taken)
        batches.put_back(batch, taken)
        batch.feather_sorted = (batch.reqs, len(batch.reqs))  # a chosen few are sorted when they are chosen
        return result

    def pass_begins(self) -> None:
        """While rows are parked no prefill takes the running batch along: it would decode all of them."""
        self.tails.sweep()
        self._scheduler.is_mixed_chunk = self._mixes and not self.tails

    def pass_ends(self) -> None:
        """What follows is SGLang's own business again."""
        self._scheduler.is_mixed_chunk = self._mixes

    def reserve(self, adder: Any) -> None:
        """The KV of parked rows is spoken for: nobody is admitted into it (``PrefillAdder``)."""
        if tokens := self.tails.tokens:
            adder.memory_budget.total_offset += tokens
            adder.memory_budget.current_offset += tokens

    def state(self) -> dict[str, Any]:
        """For ``/server_info``, in plain builtins."""
        self.tails.sweep()
        slab, counts = self.tails.slab, self.tails.counts
        return {
            "parked": len(self.tails),
            "parked_now_tokens": self.tails.tokens,
            "host_tokens": slab.tokens,
            "host_tokens_free": slab.ranges.free,
            "steps": self.steps,
            "partial_steps": self.partial,
            **{name: counts[name] for name in ("parks", "resumes", "parked_tokens", "ended_parked", "released")},
        }

    def _plenty(self, batch: Any) -> bool:
        """Whether two steps of all rows surely fit: a page each, and a token more where that is a page."""
        scheduler = self._scheduler
        need = len(batch.reqs) * max(2, scheduler.page_size)
        return bool(need <= self._free())

    def _free(self) -> int:
        scheduler = self._scheduler
        return int(scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size())

    def _end_aborted(self, batch: Any) -> None:
        self.tails.sweep()
        ended = [req for req in batch.reqs if req.to_finish is not None and req in self.tails]
        for req in ended:
            self.tails.end(req)
        if ended:
            batch.filter_batch()
            batch.batch_is_full = False

    @staticmethod
    def _ending(batch: Any, finishing: set[Any]) -> list[int]:
        """Rows that end with the step in flight: SGLang takes them out of the batch that it is given."""
        return [i for i, req in enumerate(batch.reqs) if req in finishing]

    def _carry_out(self, batch: Any, finishing: set[Any]) -> list[int]:
        """Decide, and move what is to be moved; returns the rows that decode, by position."""
        order = [i for i, req in enumerate(batch.reqs) if req not in finishing]
        if not order:
            return []
        order.sort(key=lambda i: _age(batch.reqs[i], i))
        residents = [self._resident(batch.reqs[i], i) for i in order]
        position = {resident.id: i for resident, i in zip(residents, order, strict=True)}
        soon = sum(self.tails.private(req) for req in finishing)
        limits = Limits(
            kv_tokens=self._free(),
            rows=0,
            prefill_tokens=0,
            soon_tokens=soon,
            page=self._scheduler.page_size,
            host_tokens=self.tails.slab.ranges.largest,
            host_rows=self._most - len(self.tails),
            link_tokens=self._link_tokens,
            may_choose_rows=True,
            may_park=self.tails.slab.tokens > 0,
        )
        decode = self._choose(limits, residents) if self._still < PATIENCE else None
        if decode is None:
            decode = fit(residents, limits)
        for id in decode.park:
            self.tails.park(batch.reqs[position[id]])
        refused = [id for id in decode.resume if not self.tails.resume(batch.reqs[position[id]])]
        going_on = [position[id] for id in decode.rows if batch.reqs[position[id]] not in self.tails]
        released = list(decode.release)
        if refused and not going_on:
            released = refused[-1:]
        return self._without(batch, [batch.reqs[position[id]] for id in released], going_on)

    def _resident(self, req: Any, i: int) -> Resident:
        tails = self.tails
        parked = req in tails
        tracked = req.__dict__.get("feather")
        return Resident(
            id=tracked.id if tracked is not None else -1 - i,
            length=tails.length(req),
            private=tails.private(req),
            parked=parked,
            settled=parked or settled(req),
            must_decode=not parked and _stays(req),
        )

    def _without(self, batch: Any, reqs: Sequence[Any], going_on: list[int]) -> list[int]:
        """Send rows back to the waiting queue, as SGLang does with those it retracts; the positions of the others."""
        if not reqs:
            return going_on
        scheduler = self._scheduler
        rows = [batch.reqs[i] for i in going_on]
        for req in reqs:
            batch.release_req(batch.reqs.index(req), len(batch.reqs) - 1)
        batch.filter_batch(keep_indices=[i for i, req in enumerate(batch.reqs) if req not in reqs])
        batch.batch_is_full = False
        self.tails.sweep()
        self.tails.counts["released"] += len(reqs)
        tracker = scheduler.new_token_ratio_tracker
        tracker.current = tracker.estimate_new_token_ratio_after_retract(batch.reqs)
        logger.warning("feather: %d rows computed again: neither KV pool nor host has room for them", len(reqs))
        for req in reqs:
            scheduler._add_request_to_queue(req, is_retracted=True)
        return [batch.reqs.index(req) for req in rows]


def _stays(req: Any) -> bool:
    """Whether a row always decodes: its last step, or KV that others than itself know of."""
    return req.to_finish is not None or req.session is not None or req.beam_group is not None


def _age(req: Any, i: int) -> tuple[int, int, int]:
    tracked = req.__dict__.get("feather")
    return (*tracked.arrival, i) if tracked is not None else (-1, -1, i)
