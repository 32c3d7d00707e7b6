"""One pass of the scheduler core inside one pass of SGLang's scheduler.

``Scheduler._get_new_batch_prefill_raw`` is one pass. Inside it SGLang orders its queue (``calc_priority``), builds a
``PrefillAdder``, gives it the chunked request that goes on, and offers it the queue, one request after the other::

    open -> order: begin -> [adder built] -> candidates: plan_admissions -> [loop, batch built] -> close: settle

The plan is made when the loop takes its first request, because only then the adder's budgets are what this pass may
really spend. The loop sees the planned requests and then the end of the queue: nobody is refused to make it stop, and
the batch is not marked full.

Nothing that goes wrong in the core may reach the loop. The core is then dropped, the rest of the pass is first come,
first served, and the next pass builds a new core from what is waiting and running. The second time the policy gives up
for good. A panic of the extension is a BaseException, so that is what is caught. Where several ranks decide together
(``ranks.py``) a rank works from the leader's first word on, and a failure counts only if all of them had it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from feather_sglang.core.interface import Admissions, Core, Decode, Limits, Resident, Step
from feather_sglang.core.settings import Settings
from feather_sglang.core.sharing import Paths
from feather_sglang.sglang.attention.register import state_of
from feather_sglang.sglang.attention.source import paths_of_batch
from feather_sglang.sglang.book import Book
from feather_sglang.sglang.changes import SWITCHED_OFF
from feather_sglang.sglang.limits import Budgets, is_idle
from feather_sglang.sglang.mirror import Mirror
from feather_sglang.sglang.progress import Progress, StalledError
from feather_sglang.sglang.queue import WaitingQueue, follow
from feather_sglang.sglang.ranks import Ranks
from feather_sglang.sglang.row_order import ALL_ROWS, RowOrder, forget_order
from feather_sglang.sglang.rows import EXPRESS, RUNNING, WAITING, Tracked, prefix_of
from feather_sglang.sglang.watch import Watch

logger = logging.getLogger(__name__)

FORGIVEN_PASSES = 10_000
"""Passes after which a failure of the core is forgotten; two within as many end the policy."""

NOT_TAKEN_UP = "the leader rank has not said what to work with"


class Adapter:
    """The policy of one scheduler, from its start on.

    :param scheduler: SGLang's ``Scheduler``, initialised.
    :param settings: the core's.
    :param new_core: makes a core of them with nothing in it; called at the start and after a failure.
    :param clip: SGLang's ``CLIP_MAX_NEW_TOKENS``.
    :param counts_held_rows: see ``limits.Budgets``.
    :param row_order: whether the rows of running batches are sorted by family.
    :param ranks: those that share the waiting queue.
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
        row_order: bool,
        ranks: Ranks,
    ) -> None:
        self.settings = settings
        self.ranks = ranks
        self.watch = Watch(settings.chunk_size)
        unread = partial(self.watch.fell_back, "unreadable_request")
        self.mirror = Mirror(settings, new_core, scheduler.page_size, clip, unread)
        self.book: Book = self.mirror.book
        self.row_order = RowOrder(scheduler, self.plan_decode) if row_order else None
        self.progress = Progress()
        self.fallen: str | None = NOT_TAKEN_UP if ranks.size > 1 else None
        """Why the policy does not work, or no more; None: it does."""
        self.failures = 0
        """Failures of the core so far."""
        self._passes = 0
        self._failed_in: int | None = None
        """The pass of the last failure."""
        self.feeds_attention = state_of(scheduler) is not None
        """Whether the model's attention makes use of what rows share."""
        self._failed_here: str | None = None
        """A failure of which it is not known whether the other ranks had it."""
        self._scheduler = scheduler
        self.budgets = Budgets(scheduler, counts_held_rows)
        self._begun = False
        self._adder: Any = None
        self._batch: Any = None
        self._offered: list[Tracked] = []
        self._offered_all = False
        self._planned = False

    @property
    def core(self) -> Core | None:
        return self.mirror.core

    @property
    def decisions(self) -> tuple[int, int, int] | None:
        """Failures, and what ``Core.decisions`` says since the last one; None while the core is lost."""
        return None if self.core is None else (self.failures, *self.core.decisions)

    # --- what the leader says ------------------------------------------------------------------------------------

    def take_up(self, settings: Settings, learned: dict[str, dict[str, Any]]) -> None:
        """Begin to work, with the settings of the leader and what gates learned there; what waits is taken over."""
        if self.fallen != NOT_TAKEN_UP:
            return
        self.settings = settings
        self.fallen = None
        self._guarded(self._take_up, settings, learned)
        follow(self._scheduler, self)

    def _take_up(self, settings: Settings, learned: dict[str, dict[str, Any]]) -> None:
        self.mirror.restart(settings)
        if self.watch.keeper is not None and self.core is not None:
            self.watch.keeper.known = learned
            self.watch.keeper.resume(self.core.gate)

    def bound_waits(self, tokens: int) -> None:
        """Another bound on waiting, in scheduled tokens."""
        self.settings = replace(self.settings, max_wait_tokens=tokens)
        self._guarded(self.mirror.bound_waits, tokens)

    def observe(self, steps: Sequence[Step]) -> None:
        """What steps took."""
        if self.core is not None:
            self._guarded(self.core.observe, steps)

    def switch(self, *, on: bool) -> None:
        """Stand back from here on, first come, first served, or take up again what waits; between two passes."""
        if on and self.fallen == SWITCHED_OFF:
            self.fallen = None
            self._guarded(self.mirror.wake)
            follow(self._scheduler, self)
        elif not on and self.fallen is None:
            self.fallen = SWITCHED_OFF
            self.mirror.rest()
            forget_order(self._scheduler.running_batch)

    # --- the waiting queue ---------------------------------------------------------------------------------------

    def entered(self, req: Any) -> None:
        """A request was put into the waiting queue: new, retracted, or an error stub."""
        if self.fallen is None:
            self._guarded(self.mirror.enter, req)

    def left(self, req: Any) -> None:
        """A request was taken out of the waiting queue, and not into a batch."""
        tracked = req.__dict__.get("feather")
        if tracked is not None:
            self._guarded(self.mirror.release, tracked, None)

    def adopt(self, requests: list[Any] | WaitingQueue) -> list[Any] | WaitingQueue:
        """A new list for the waiting queue: in a pass the old one without the admitted, else whatever it is."""
        if self.fallen is not None:
            return requests
        queue = WaitingQueue(requests.data if isinstance(requests, WaitingQueue) else requests, self)
        book = self.book
        if self._adder is None or len(queue) + self._admitted_count() != len(book.waiting) + len(book.express):
            self.compare(queue.data)
        return queue

    def _admitted_count(self) -> int:
        taken = self._adder.can_run_list
        if not taken:
            return 0
        # A chunk that goes on comes first. None: not followed, begun while the policy was off or aborted and retracted.
        first: Tracked | None = taken[0].__dict__.get("feather")
        goes_on = first is None or first.place is RUNNING
        return len(taken) - goes_on

    def compare(self, requests: list[Any]) -> None:
        """Report what a replaced queue lost and gained: O(queue), for the rare replacements outside a pass."""
        kept = {id(req) for req in requests}
        for place in (self.book.waiting, self.book.express):
            for tracked in [t for t in place.values() if id(t.req) not in kept]:
                self.left(tracked.req)
        for req in requests:
            tracked = req.__dict__.get("feather")
            if tracked is None or tracked.place not in (WAITING, EXPRESS):
                self.entered(req)

    # --- one pass ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """A pass begins."""
        Adapter.current = self
        self._passes += 1
        self._begun = False

    def order(self, queue: Any, running_batch: Any) -> None:
        """SGLang orders its queue: read what changed, and have the loop see the plan."""
        self._begin(running_batch)
        if self.fallen is None:
            self._batch, self._offered, self._offered_all, self._planned = running_batch, [], False, False
            if isinstance(queue, WaitingQueue):
                queue.show(lambda: self.candidates(queue))

    def built(self, adder: Any) -> None:
        """The pass has its ``PrefillAdder``."""
        self._adder = adder

    def candidates(self, queue: Any) -> Iterator[Any]:
        """What the loop is offered: stubs first, then the plan, in its order, and then nothing.

        A pass that is spent, by a resumed chunk say, ends here: versions before 0.5.23 would still match the next one.
        So does one in which a request found less in the cache than the core believed: what it computes now, its
        siblings in the plan would compute again.
        """
        adder = self._adder
        stubs = [tracked.req for tracked in self.book.express.values()]
        yield from stubs
        plans = self.core is not None and not self.progress.overdue
        plan = self._guarded(self._plan, adder) if plans else None
        self.share_failure()
        if plan is None:
            offered = {id(req) for req in stubs}
            yield from (req for req in queue[:] if id(req) not in offered)
            return
        waiting, taken, chunk = self.book.waiting, adder.can_run_list, self.settings.chunk_size
        for candidate in plan.order:
            tracked = waiting.get(candidate.id)
            if tracked is None:
                continue
            self._offered.append(tracked)
            req = tracked.req
            yield req
            computed = candidate.add_total - prefix_of(req)
            if computed > candidate.uncomputed + chunk and taken and taken[-1] is req:
                return
        self._offered_all = True

    def close(self, batch: Any) -> None:
        """The pass is over.

        :param batch: what it made; None: no prefill, and the running batch may decode.
        """
        Adapter.current = None
        queue = self._scheduler.waiting_queue
        if isinstance(queue, WaitingQueue):
            queue.show(None)
        if self._adder is not None and self.fallen is None:
            self._guarded(self._settle, self._adder)
        self._adder = self._batch = None
        self._offered = []  # requests live as long as the engine wants them, and no longer
        if batch is None:
            self._reap()
        else:
            self._begun = False  # no decode follows that would begin again
        self.watch.closed(self.core)

    def before_decode(self, running_batch: Any) -> None:
        """``update_running_batch``: a pass that never came to order its queue begins here."""
        if not self._begun:
            self._begin(running_batch)
        self._begun = False
        if self.row_order is not None and self.fallen is None:
            self.row_order.arrange(running_batch)

    def plan_decode(self, limits: Limits = ALL_ROWS, residents: Sequence[Resident] = ()) -> Decode | None:
        """What the core decides of the rows that decode (``Core.plan_decode``); None while it is lost."""
        return self._guarded(self.core.plan_decode, limits, residents) if self.core is not None else None

    def paths_of(self, batch: Any) -> Paths | None:
        """What the rows of a batch share, as far as the core knows; None: they do not decode, or there is no core."""
        decode = self.plan_decode() if batch.forward_mode.is_decode() else None
        return None if decode is None else paths_of_batch(decode, batch.reqs)

    def flushed(self) -> None:
        """The engine dropped its cache."""
        self._reap()
        if self.core is not None:
            self._guarded(self.core.forget)

    def _reap(self) -> None:
        """Let go of the rows if all of them finished: no row that decodes will, and an idle server stands for long."""
        seen, batch = self.book.seen, self._scheduler.running_batch
        if not batch.reqs:
            forget_order(batch)
        if self.fallen is None and seen and all(req.finished() for req in seen):
            self._guarded(self.mirror.reconcile, [], None)

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other settings, between two passes."""
        self.settings = settings
        self._guarded(self._reconfigure, settings)

    def _reconfigure(self, settings: Settings) -> None:
        keeper, before = self.watch.keeper, self.core
        if keeper is not None and before is not None:
            keeper.leave(before.gate)
        self.mirror.reconfigure(settings)
        if keeper is not None and self.core is not None and before is not None and self.core.gate is not before.gate:
            keeper.resume(self.core.gate)

    def ask(self, question: Callable[[Core], Any]) -> Any:
        """What the core answers; None while it is lost, or if it cannot.

        Perhaps only this rank is asked, so nothing may follow from it.
        """
        return self.watch.aside(question, self.core) if self.core is not None else None

    def core_state(self) -> dict[str, Any]:
        """The core's figures; none while it is lost."""
        return self.ask(lambda core: core.state()) or {}

    def _begin(self, running_batch: Any) -> None:
        """Tell the core what changed in the batch; once in a pass, whichever hook comes first."""
        if self.fallen is None:
            self._begun = True
            self._guarded(self.mirror.reconcile, self._running(running_batch), self._scheduler.chunked_req)

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

    def _plan(self, adder: Any) -> Admissions:
        assert self.core is not None
        running = self._running(self._batch)
        limits = self.budgets.limits(running, self._batch, adder)
        self.watch.plans(self.core)
        plan = self.core.plan_admissions(limits)
        self._planned = True
        self.progress.planned(self._passes, limits, plan)
        self.watch.planned(limits, plan, self)
        return plan

    def _settle(self, adder: Any) -> None:
        core = self.core if self._planned else None
        admitted = self.mirror.admit(adder.can_run_list, planned=core is not None)
        refused = self._refused()
        if core is not None:
            reused = {tracked.id: tokens for tracked, tokens in admitted}
            core.settle(reused, {t.id: "not admitted by the engine" for t in refused})
        self.watch.settled(admitted, refused)
        taken = bool(adder.can_run_list)
        idle = not taken and is_idle(self._scheduler, self._running(self._batch), adder)
        self.progress.passed(admitted=taken, idle=idle)

    def _refused(self) -> list[Tracked]:
        """Requests that the loop looked at and did not take, others going first.

        One at which it stopped was not refused itself, if only the budget of the pass ended there: it keeps its turn.
        """
        offered = self._offered
        if offered and not self._offered_all and not self._batch.batch_is_full and self._adder.can_run_list:
            offered = offered[:-1]
        return [tracked for tracked in offered if tracked.place is WAITING]

    # --- failures ------------------------------------------------------------------------------------------------

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        """Make a call that comes to the core; what goes wrong in it ends here. None: it failed (or said nothing)."""
        began = time.perf_counter()
        try:
            return call(*args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._failed(error)
            return None
        finally:
            self.watch.spent += time.perf_counter() - began

    def share_failure(self) -> None:
        """Before SGLang goes through its queue, or launches: a failure that is not known to be everybody's must be.

        Not where it happened, which may be before the requests of this turn were handed on to the next pipeline stage.

        :raises DisagreementError: if this rank failed alone.
        """
        failure, self._failed_here = self._failed_here, None
        if failure is not None:
            self.ranks.agree_on_failure(failure)

    def _failed(self, error: BaseException) -> None:
        self.mirror.core = None
        self.failures += 1
        self._failed_here = f"failure {self.failures}, in pass {self._passes}: {type(error).__name__}"
        before, self._failed_in = self._failed_in, self._passes
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, StalledError):
            for line in self.progress.last_passes():
                logger.error("feather: %s", line)
        if before is None or self._passes - before > FORGIVEN_PASSES:
            logger.error("feather: the scheduler core failed (%s); it is built anew", reason, exc_info=error)
            self.watch.fell_back("core_rebuilt")
            return
        self.fallen = reason
        self.watch.fell_back("gave_up")
        self.book.clear()
        forget_order(self._scheduler.running_batch)
        logger.error(
            "feather: the scheduler core failed again (%s); this server goes on first come, first served until it is "
            "started again",
            reason,
            exc_info=error,
        )
