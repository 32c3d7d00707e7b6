"""What happened in the passes of one scheduler, counted for operators. No decision reads any of it.

It costs a pass a few additions; metrics and the decision log are off unless they were asked for. They are kept on the
leader rank alone, so what goes wrong in them ends them, and must not reach the core, which works on on the other ranks.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from feather_sglang.core.interface import Admissions, Core, Limits
from feather_sglang.sglang.rows import Tracked, namespace_of
from feather_sglang.sglang.waits import Waits

if TYPE_CHECKING:
    from feather_sglang.core.recording import Recorder
    from feather_sglang.sglang.adapter import Adapter
    from feather_sglang.sglang.decision_log import DecisionLog
    from feather_sglang.sglang.keeper import Keeper
    from feather_sglang.sglang.metrics import Metrics

logger = logging.getLogger(__name__)

FALLBACKS = (
    "stands_back",
    "core_rebuilt",
    "gave_up",
    "unreadable_request",
    "log_off",
    "recording_off",
    "state_not_saved",
)
"""Everything that can be lost without ending the server: the reasons of ``sglang:feather_fallbacks_total``."""

STOPS = ("gate", "kept", "room", "looked")
"""Why a plan ends before its limits do: the gate, rows kept for requests that are held back, room kept for the oldest,
enough requests looked at that do not fit."""


class Watch:
    """The record of one scheduler.

    :param chunk_size: tokens of a chunk of the index.
    """

    def __init__(self, chunk_size: int) -> None:
        self.chunk_size = chunk_size
        self.log: DecisionLog | None = None
        self.metrics: Metrics | None = None
        self.keeper: Keeper | None = None
        self.recorder: Recorder | None = None
        self.waits = Waits()
        self.passes = 0
        self.seconds = 0.0
        """Time that the policy took in all passes, and between them for arrivals and departures."""
        self.asked = 0
        """Passes in which a gate was asked."""
        self.stops: Counter[str] = Counter(dict.fromkeys(STOPS, 0))
        self.fallbacks: Counter[str] = Counter(dict.fromkeys(FALLBACKS, 0))
        self.prompt_tokens = 0
        """Of the requests admitted, those that SGLang found in its cache included."""
        self.reused_tokens = 0
        self.spent = 0.0
        """Seconds in the core since the last pass ended."""
        self._before: dict[str, Any] = {}
        """The core's state before the plan of this pass, while there is a log."""

    def aside(self, call: Callable[..., Any], *args: Any) -> Any:
        """Make a call that other ranks do not make. If it fails, decision log and metrics end; it answers None."""
        try:
            return call(*args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of the extension is no Exception
            logger.exception("feather: it is watched no more: decision log and metrics end here")
            self.fell_back("log_off")
            if self.metrics is not None:
                self.metrics.adapter = None
            self.log = self.metrics = None
            return None

    def take_recorder(self, recorder: Recorder | None) -> None:
        """What this scheduler's core is recorded by, from its start on."""
        self.recorder = recorder
        if recorder is None:
            return
        recorder.lost = partial(self.fell_back, "recording_off")
        if not recorder.is_open:
            recorder.lost()

    def plans(self, core: Core) -> None:
        """A pass is about to be planned."""
        if self.log is not None:
            self._before = self.aside(core.state)

    def planned(self, limits: Limits, plan: Admissions, adapter: Adapter) -> None:
        """A pass was planned, and nothing of the plan is in the batch yet."""
        if limits.may_stop and adapter.settings.gate != "never":
            self.asked += 1
        if plan.stop is not None:
            self.stops[plan.stop.partition(" ")[0]] += 1
        if self.log is not None and adapter.core is not None:
            self.aside(self._log_plan, self.log, limits, plan, adapter, adapter.core)

    def _log_plan(self, log: DecisionLog, limits: Limits, plan: Admissions, adapter: Adapter, core: Core) -> None:
        log.planned(
            limits,
            plan,
            settings=adapter.settings,
            number=self.passes,
            before=self._before,
            book=adapter.book,
            held_for=core.held_for(),
        )

    def settled(self, admitted: Sequence[tuple[Tracked, int]], refused: Sequence[Tracked]) -> None:
        """What SGLang did with a plan.

        :param admitted: with the tokens that each found in the cache.
        """
        now = time.monotonic()
        waits: defaultdict[tuple[str | None, ...], list[float]] = defaultdict(list)
        for tracked, reused in admitted:
            since = tracked.since
            if since is None:  # it was retracted, and waited before
                continue
            tracked.since = None
            req = tracked.req
            length = len(req.origin_input_ids)
            self.prompt_tokens += length
            self.reused_tokens += min(reused, length)
            waits[namespace_of(req)].append(now - since)
            if self.metrics is not None:
                self.aside(self.metrics.waited, now - since, 2 * reused >= length)
        for namespace, seconds in waits.items():
            self.waits.add(namespace, seconds, now)
        if self.log is not None:
            self.aside(self.log.settled, admitted, refused)

    def closed(self, core: Core | None) -> None:
        """A pass is over."""
        self.passes += 1
        self.seconds += self.spent
        if self.metrics is not None:
            self.aside(self.metrics.passed, self.spent)
        if self.keeper is not None and core is not None:
            self.keeper.tick(core.gate)
        self.spent = 0.0

    def fell_back(self, reason: str) -> None:
        """:param reason: one of ``FALLBACKS``."""
        self.fallbacks[reason] += 1

    def state(self) -> dict[str, Any]:
        """For ``/server_info``, in plain builtins."""
        return {
            "passes": self.passes,
            "policy_seconds": self.seconds,
            "gate_asked": self.asked,
            "stops_by": dict(self.stops),
            "fallbacks": {reason: count for reason, count in self.fallbacks.items() if count},
            "prompt_tokens": self.prompt_tokens,
            "reused_tokens": self.reused_tokens,
            "waits": self.waits.state(time.monotonic()),
        }


def families_of(core: Any, waiting: Mapping[int, Tracked]) -> dict[str, Any]:
    """The core's families, with the seconds that the oldest request of each has waited."""
    families: dict[str, Any] = core.families()
    now = time.monotonic()
    for family in families["families"]:
        tracked = waiting.get(family.pop("oldest"))
        since = tracked.since if tracked is not None else None
        family["oldest_seconds"] = None if since is None else now - since
    return families
