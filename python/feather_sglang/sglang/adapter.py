"""One pass of the scheduler core inside one pass of SGLang's scheduler.

``Scheduler._get_new_batch_prefill_raw`` is one pass. Inside it SGLang orders its queue (``calc_priority``), builds a
``PrefillAdder``, gives it the chunked request that goes on, and offers it the queue, one request after the other::

    open -> order: begin -> [adder built] -> candidates: plan_admissions -> [loop, batch built] -> close: settle

The plan is made when the loop takes its first request, because only then the adder's budgets are what this pass may
really spend. The loop sees the planned requests and then the end of the queue: nobody is refused to make it stop, and
the batch is not marked full.

Nothing that goes wrong in the core may reach the loop. The core is then dropped, the rest of the pass is first come,
first served, and the next pass builds a new core from what is waiting and running. The second time the policy gives up
for good. A panic of the extension is a BaseException, so that is what is caught.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from feather_sglang.core.interface import Admissions, Core, Row
from feather_sglang.core.settings import Settings
from feather_sglang.sglang.book import Book
from feather_sglang.sglang.limits import limits_of
from feather_sglang.sglang.queue import WaitingQueue
from feather_sglang.sglang.rows import (
    Place,
    Tracked,
    is_computing,
    produced_by,
    request_of,
    row_of,
    unshared_request_of,
)

logger = logging.getLogger(__name__)

GROWTH_PASSES = 16
"""Passes between two looks at the output of all decoding rows: what a row grew by is told in one piece."""

FAILURES_ALLOWED = 1
"""Failures of the core after which it is rebuilt; the next one ends the policy."""


class Adapter:
    """The policy of one scheduler, from its start on.

    :param scheduler: SGLang's ``Scheduler``, initialised.
    :param settings: the core's.
    :param new_core: makes a core of them with nothing in it; called at the start and after a failure.
    :param clip: SGLang's ``CLIP_MAX_NEW_TOKENS``.
    :param counts_held_rows: see ``limits.free_rows``.
    """

    current: Adapter | None = None
    """The adapter whose pass is running in this process, for hooks on objects that do not know their scheduler."""

    def __init__(
        self,
        scheduler: Any,
        settings: Settings,
        new_core: Callable[[Settings], Core],
        *,
        clip: int,
        counts_held_rows: bool,
    ) -> None:
        self.settings = settings
        self.book = Book()
        self.fallen: str | None = None
        """Why the policy gave up; None: it is at work."""
        self.failures = 0
        self.express_admitted = 0
        self._scheduler = scheduler
        self._new_core = new_core
        self._clip = clip
        self._counts_held_rows = counts_held_rows
        self._page: int = scheduler.page_size
        self.core: Core | None = new_core(settings)
        self._passes = 0
        self._begun = False
        self._adder: Any = None
        self._batch: Any = None
        self._offered: list[Tracked] = []
        self._planned = False

    # --- the waiting queue ---------------------------------------------------------------------------------------

    def entered(self, req: Any) -> None:
        """A request was put into the waiting queue: new, retracted, or an error stub."""
        if self.fallen is not None:
            return
        core = self.core
        tracked = self.book.enter(req, core.scheduled_tokens if core is not None else 0)
        if tracked is not None and core is not None:
            self._guarded(core.enqueue, self._request(tracked))

    def left(self, req: Any) -> None:
        """A request was taken out of the waiting queue, and not into a batch."""
        tracked = req.__dict__.get("feather")
        if tracked is not None:
            self._release(tracked, None)

    def adopt(self, requests: list[Any]) -> list[Any]:
        """A new list for the waiting queue: in a pass the old one without the admitted, else whatever it is."""
        if self.fallen is not None:
            return requests
        queue = WaitingQueue(requests, self)
        if not (self._adder is not None and len(queue) + self._admitted_count() == self._queue_length()):
            self._compare(queue)
        return queue

    def _queue_length(self) -> int:
        return len(self.book.waiting) + len(self.book.express)

    def _admitted_count(self) -> int:
        return sum(
            (t := req.__dict__.get("feather")) is not None and t.place is not Place.RUNNING
            for req in self._adder.can_run_list
        )

    def _compare(self, queue: WaitingQueue) -> None:
        """Report what a replaced queue lost and gained: O(queue), for the rare replacements outside a pass."""
        kept = {id(req) for req in queue.in_order()}
        for place in (self.book.waiting, self.book.express):
            for tracked in [t for t in place.values() if id(t.req) not in kept]:
                self.left(tracked.req)
        for req in queue.in_order():
            tracked = req.__dict__.get("feather")
            if tracked is None or tracked.place not in (Place.WAITING, Place.EXPRESS):
                self.entered(req)

    # --- one pass ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """A pass begins."""
        Adapter.current = self
        self._adder = self._batch = None
        self._offered = []
        self._planned = False

    def order(self, queue: Any, running_batch: Any) -> None:
        """SGLang orders its queue: read what changed, and have the loop see the plan."""
        self._batch = running_batch
        self.begin(running_batch)
        if self.fallen is None and isinstance(queue, WaitingQueue):
            queue.show(lambda: self.candidates(queue))

    def built(self, adder: Any) -> None:
        """The pass has its ``PrefillAdder``."""
        self._adder = adder

    def candidates(self, queue: WaitingQueue) -> Iterator[Any]:
        """What the loop is offered: stubs first, then the plan, in its order, and then nothing."""
        for tracked in list(self.book.express.values()):
            yield tracked.req
        # A resumed chunk can spend the whole pass; versions before 0.5.23 would not look before they match.
        if self._adder.budget_state().name == "OTHER":
            return
        plan = self._plan()
        if plan is None:
            yield from queue.in_order()
            return
        for candidate in plan.order:
            tracked = self.book.waiting.get(candidate.id)
            if tracked is not None:
                self._offered.append(tracked)
                yield tracked.req

    def close(self, batch: Any) -> None:
        """The pass is over.

        :param batch: what it made; None: no prefill, and the running batch may decode.
        """
        Adapter.current = None
        queue, adder = self._scheduler.waiting_queue, self._adder
        if isinstance(queue, WaitingQueue):
            queue.show(None)
        if batch is not None:
            self._begun = False  # no decode follows that would begin again
        if adder is not None and self.fallen is None:
            self._settle(adder)
        self._adder = self._batch = None

    def begin(self, running_batch: Any) -> None:
        """Tell the core what changed in the batch; once in a pass, whichever hook comes first."""
        if self.fallen is not None:
            return
        self._begun = True
        self._passes += 1
        alive = self.book.alive_of(self._running(running_batch))
        gone = self.book.vanished(alive)
        if self.core is None:
            for tracked in gone:
                self.book.release(tracked)
            self._guarded(self._rebuild, alive)
            return
        changed = self._changes()
        finished: list[tuple[Tracked, int | None]] = []
        for tracked in gone:
            produced = produced_by(tracked)
            if produced is not None and produced > tracked.told:
                changed.append(self._grown(tracked))
            finished.append((tracked, produced))
            alive.append(tracked.id)  # until its output is told
        self._guarded(self.core.begin, changed, alive)
        for tracked, produced in finished:
            self._release(tracked, produced)

    def before_decode(self, running_batch: Any) -> None:
        """``update_running_batch``: a pass that never came to order its queue begins here."""
        if not self._begun:
            self.begin(running_batch)
        self._begun = False

    def flushed(self) -> None:
        """The engine dropped its cache."""
        self.reap()
        if self.core is not None and self.fallen is None:
            self._guarded(self.core.forget)

    def reap(self) -> None:
        """Let go of rows that finished since the last pass; for whoever looks between two passes."""
        for tracked in [t for t in self.book.running.values() if t.req.finished()]:
            self._release(tracked, produced_by(tracked))

    # --- parts of a pass -----------------------------------------------------------------------------------------

    def _running(self, running_batch: Any) -> list[Any]:
        """Every request that the engine runs."""
        scheduler = self._scheduler
        running: list[Any] = running_batch.reqs
        chunked = scheduler.chunked_req
        others = scheduler.__dict__.get("running_mbs")
        if others is not None:  # pipeline stages: micro-batches stand, and fly, on their own
            batches = [running_batch, *others, *scheduler.last_mbs, *scheduler.mbs]
            reqs = {id(req): req for batch in batches if batch is not None for req in batch.reqs if not req.finished()}
            if chunked is not None:
                reqs[id(chunked)] = chunked
            return list(reqs.values())
        return running if chunked is None else [*running, chunked]

    def _changes(self) -> list[Row]:
        changed: list[Row] = []
        chunked = self._scheduler.chunked_req
        for tracked in list(self.book.computing.values()):
            computing = is_computing(tracked, chunked)
            if not computing:
                del self.book.computing[tracked.id]
            row = row_of(tracked, computing)
            if row is not None:
                changed.append(row)
        if self._passes % GROWTH_PASSES == 0:
            changed.extend(
                self._grown(tracked)
                for tracked in self.book.running.values()
                if len(tracked.req.output_ids) - tracked.told >= self.settings.chunk_size
            )
        return changed

    def _grown(self, tracked: Tracked) -> Row:
        output = tracked.req.output_ids
        row = row_of(tracked, tracked.id in self.book.computing, grown=output[tracked.told :])
        tracked.told = len(output)
        assert row is not None
        return row

    def _plan(self) -> Admissions | None:
        if self.core is None:
            return None
        running = self._running(self._batch)
        limits = limits_of(self._scheduler, running, self._batch, self._adder, counts_held_rows=self._counts_held_rows)
        plan = self._guarded(self.core.plan_admissions, limits)
        self._planned = plan is not None
        return plan

    def _settle(self, adder: Any) -> None:
        reused: dict[int, int] = {}
        for req in adder.can_run_list:
            tracked: Tracked | None = req.__dict__.get("feather")
            if tracked is not None and tracked.place is not Place.RUNNING:
                reused[tracked.id] = req.prefix_len if hasattr(req, "prefix_len") else len(req.prefix_indices)
                if tracked.place is Place.EXPRESS:
                    del reused[tracked.id]
                    self.express_admitted += 1
                self.book.admit(tracked)
        if self._planned and self.core is not None:
            refused = {t.id: "not admitted by the engine" for t in self._offered if t.place is Place.WAITING}
            self._guarded(self.core.settle, reused, refused)

    def _request(self, tracked: Tracked) -> Any:
        try:
            return request_of(tracked, self._page, self._clip)
        except Exception:
            logger.exception(
                "feather: request %s cannot be read as a request of a known SGLang; it shares nothing",
                getattr(tracked.req, "rid", "?"),
            )
            return unshared_request_of(tracked, self._page)

    def _release(self, tracked: Tracked, produced: int | None) -> None:
        in_core = tracked.place is not Place.EXPRESS and tracked.place is not Place.GONE
        if tracked.place is not Place.GONE:
            self.book.release(tracked)
        if in_core and self.core is not None:
            self._guarded(self.core.leave, tracked.id, produced)

    # --- failures ------------------------------------------------------------------------------------------------

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call into the core; what goes wrong there ends there. None: it failed (or said nothing)."""
        try:
            return call(*args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._failed(error)
            return None

    def _failed(self, error: BaseException) -> None:
        self.core = None
        self.failures += 1
        reason = f"{type(error).__name__}: {error}"
        if self.failures <= FAILURES_ALLOWED:
            logger.error("feather: the scheduler core failed (%s); it is built anew", reason, exc_info=error)
            return
        self.fallen = reason
        self.book.clear()
        logger.error(
            "feather: the scheduler core failed again (%s); this server goes on first come, first served until it is "
            "started again",
            reason,
            exc_info=error,
        )

    def _rebuild(self, alive: list[int]) -> None:
        """A new core from what waits and runs. Its count of tokens starts anew: the order of arrival stays."""
        core = self._new_core(self.settings)
        rows: list[Row] = []
        for place in (self.book.running, self.book.waiting):
            for tracked in sorted(place.values(), key=lambda t: t.arrival):
                tracked.arrival = (core.scheduled_tokens, tracked.arrival[1])
                tracked.published, tracked.told = -1, len(tracked.req.output_ids)
                core.enqueue(self._request(tracked))
                if place is self.book.running:
                    row = row_of(tracked, tracked.id in self.book.computing)
                    assert row is not None
                    rows.append(row)
        core.begin(rows, alive)
        self.core = core
        logger.warning(
            "feather: rebuilt with %d waiting and %d running requests", len(self.book.waiting), len(self.book.running)
        )
