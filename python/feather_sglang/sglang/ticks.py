"""The leader's word to every rank, the leader too: what only a clock or a draw can tell.

The ranks that share a waiting queue get the same requests in the same turn of their loops, because the leader
broadcasts what it received. A tick rides that broadcast (``local_reqs``, with the aborts for timeouts, which only the
leader finds) and is taken up on every rank before the requests of that turn, so that it acts at one point of the
request stream. Pipeline stages hand it on as they hand on requests. A turn may drop what the leader sends
(``scheduler_recv_interval``): a tick is sent again until the leader itself has seen it, and counted once.

One goes out for some 16 steps or a quarter of a second of them; without a gate that learns, at most one a second.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from feather_sglang.core.interface import EPISODE_STEPS, Step
from feather_sglang.core.settings import Settings
from feather_sglang.sglang.options import TOKENS_PER_SECOND
from feather_sglang.sglang.pace import Pace
from feather_sglang.sglang.ranks import DisagreementError
from feather_sglang.sglang.steps import Steps

if TYPE_CHECKING:
    from feather_sglang.sglang.adapter import Adapter

logger = logging.getLogger(__name__)

EPISODE_SECONDS = 0.25
"""What one tick waits for, if ``EPISODE_STEPS`` are not there first."""
REST = 1.0
"""Seconds between two ticks that carry no steps."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What all ranks take up at one point of the request stream."""

    seq: int
    """Counts up by one."""
    decisions: tuple[int, int, int]
    """The leader's ``Adapter.decisions`` at that point."""
    settings: Settings | None = None
    """In the first: what all ranks work with, the leader's hash key among it."""
    learned: dict[str, dict[str, Any]] = field(default_factory=dict)
    """In the first: what gates learned before, by name (``Gate.dump``)."""
    max_wait_tokens: int | None = None
    """The bound on waiting, from here on."""
    steps: tuple[Step, ...] = ()
    """Measured since the tick before."""


class Ticks:
    """Both ends of the way: ``due`` is called on the leader alone, ``take`` on every rank.

    :param max_wait: the bound on waiting, in seconds; None: it stays as it is, in tokens.
    :param synchronous: see ``Steps``.
    """

    def __init__(
        self,
        adapter: Adapter,
        max_wait: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        synchronous: bool = False,
    ) -> None:
        self._adapter = adapter
        self._clock = clock
        self.steps = Steps(clock, synchronous)
        self._leads = False
        """Whether this rank sends."""
        self._broken = False
        self._pace = None if max_wait is None else Pace(max_wait, TOKENS_PER_SECOND)
        self._measured: list[Step] = []
        self._bound: int | None = None
        self._sent: Tick | None = None
        """Not seen yet."""
        self._sent_at = float("-inf")
        self._decisions = (0, 0, 0)
        """As sent last."""
        self.seen = 0
        """The number of the last tick taken up."""

    @property
    def max_wait(self) -> float | None:
        """The bound on waiting, in seconds; None: it is one in tokens."""
        return None if self._pace is None else self._pace.max_wait

    def bound_waits(self, seconds: float) -> None:
        """Another bound, on every rank; what it comes to in tokens, the next tick tells."""
        if self._pace is None:
            self._pace = Pace(seconds, TOKENS_PER_SECOND)
        self._pace.max_wait = seconds
        self._bound = self._pace.bound

    # --- the leader ----------------------------------------------------------------------------------------------

    def launches(self, iteration: int, batch: Any) -> None:
        """A pass ended, and its step is about to be launched.

        :param batch: a micro-batch of a pipeline; None: all running rows are in the step.
        """
        if self._leads:
            self._guarded(self._launches, iteration, batch)

    def ended(self, batch: Any, result: Any) -> None:
        """The result of a step was processed."""
        if self._leads:
            self._guarded(self._ended, batch, result)

    def _launches(self, iteration: int, batch: Any) -> None:
        core = self._adapter.core
        if core is not None and core.wants_steps:
            only = None if batch is None else self._adapter.book.ids_of(batch.reqs)
            self.steps.launches(iteration, core.shared_kv(only))

    def _ended(self, batch: Any, result: Any) -> None:
        core = self._adapter.core
        if core is None or not core.wants_steps:
            self.steps.interrupted()
        elif (step := self.steps.ended(batch, result)) is not None:
            self._measured.append(step)

    def _guarded(self, call: Callable[..., Any], *args: Any) -> Any:
        """Make a call on the leader's side. If one fails nothing is sent any more, so that nothing differs."""
        if self._broken:
            return None
        try:
            return call(*args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the extension is no Exception
            self._broken = True
            logger.exception("feather: measuring failed; gates learn no more, and the bound on waiting stays as it is")
            return None

    def due(self, paused: bool) -> Tick | None:
        """What to send in this turn of the loop.

        :param paused: whether the engine stands still.
        """
        self._leads = True
        tick: Tick | None = self._guarded(self._due, paused)
        return tick

    def _due(self, paused: bool) -> Tick | None:
        adapter, now = self._adapter, self._clock()
        if paused:
            self.steps.interrupted()
        core, decisions = adapter.core, adapter.decisions
        if core is None or decisions is None:  # lost, on all ranks: they build it anew before they hear of it
            return None
        if self._pace is not None:
            if paused:
                self._pace.interrupt()
            elif (bound := self._pace.look(now, core.scheduled_tokens)) is not None:
                self._bound = bound
        if self._sent is None and self._is_due(now, decisions):
            self._sent = Tick(self.seen + 1, decisions, max_wait_tokens=self._bound, steps=tuple(self._measured))
            if self.seen == 0 and adapter.ranks.size > 1:
                keeper = adapter.watch.keeper
                known = {} if keeper is None else keeper.known
                self._sent = replace(self._sent, settings=adapter.settings, learned=known)
            self._sent_at, self._decisions = now, decisions
            self._measured.clear()
            self._bound = None
        elif self._sent is not None:
            self._sent = replace(self._sent, decisions=decisions)
        return self._sent

    def _is_due(self, now: float, decisions: tuple[int, int, int]) -> bool:
        several = self._adapter.ranks.size > 1
        if self.seen == 0 and several:
            return True
        if self._measured and (len(self._measured) >= EPISODE_STEPS or now - self._sent_at >= EPISODE_SECONDS):
            return True
        news = self._bound is not None or (several and decisions != self._decisions)
        return news and now - self._sent_at >= REST

    # --- every rank ----------------------------------------------------------------------------------------------

    def take(self, tick: Tick) -> None:
        """Take up what the leader sent.

        :raises DisagreementError: if this rank decided otherwise before.
        """
        if tick.seq <= self.seen:
            return
        self.seen, self._sent = tick.seq, None
        adapter = self._adapter
        if tick.settings is not None:
            adapter.take_up(tick.settings, tick.learned)
        core, (failures, *leaders) = adapter.core, tick.decisions
        if core is None:
            return
        if failures == adapter.failures and not core.made(*leaders):
            raise DisagreementError(
                f"feather: after {leaders[0]} admissions the leader had the digest {leaders[1]:08x}, which this rank "
                f"never had (now {core.decisions[1]:08x} after {core.decisions[0]}): they run different batches, and "
                "the server ends. Start it again, and report this."
            )
        if tick.max_wait_tokens is not None:
            adapter.bound_waits(tick.max_wait_tokens)
        if tick.steps:
            adapter.observe(tick.steps)


def strayed() -> DisagreementError:
    """A tick came to a rank that does not order its queue."""
    return DisagreementError(
        "feather: the leader orders its queue, and this rank does not. Start every node with the same arguments, "
        "FEATHER_ variables and versions."
    )
