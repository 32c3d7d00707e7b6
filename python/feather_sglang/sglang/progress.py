"""A watch on progress: a policy that admits nobody while the engine has nothing to do must not hang a server.

After some such passes there is one that is first come, first served: SGLang is offered its whole queue. If it takes
somebody then, and the policy had named nobody in all the passes before, the core has failed. If it had, SGLang put
those off for reasons of its own (an adapter or a prefix that is being fetched), and the policy goes on. All of it
follows from what is equal on all ranks, so they find out in the same pass. Limits and plan of the last passes are kept
for the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from feather_sglang.core.interface import Admissions, Limits

PATIENCE = 64
"""Passes in which nobody is admitted by an idle engine: some milliseconds of a server, and more than rule and engine
ever need between them."""
_REMEMBERED = 8


class StalledError(RuntimeError):
    """The policy kept an idle engine from those who wait."""


class Progress:
    """Of one scheduler."""

    def __init__(self) -> None:
        self._still = 0
        """Passes since somebody was admitted, or ran."""
        self._named = False
        """Whether a plan named somebody meanwhile."""
        self._recent: deque[tuple[int, Limits, Admissions]] = deque(maxlen=_REMEMBERED)

    @property
    def overdue(self) -> bool:
        """Whether this pass is to be first come, first served."""
        return self._still >= PATIENCE

    def planned(self, number: int, limits: Limits, plan: Admissions) -> None:
        """:param number: of the pass."""
        self._recent.append((number, limits, plan))
        self._named = self._named or bool(plan.order)

    def passed(self, *, admitted: bool, idle: bool) -> None:
        """A pass that offered its queue is over.

        :param idle: nothing runs, and no result is in flight.
        :raises StalledError: if the policy named nobody, and there was somebody to admit.
        """
        overdue, named = self.overdue, self._named
        if admitted or not idle or overdue:
            self._still, self._named = 0, False
        else:
            self._still += 1
        if overdue and admitted and not named:
            raise StalledError(f"an idle engine was given nobody in {PATIENCE} passes, and would have taken somebody")

    def last_passes(self) -> Iterator[str]:
        """What was planned, a line a pass."""
        for number, limits, plan in self._recent:
            yield (
                f"pass {number}: rows {limits.rows}, KV tokens {limits.kv_tokens}, prefill tokens "
                f"{limits.prefill_tokens}, idle {limits.idle}; named {len(plan.order)}, held {plan.held}, "
                f"kept {plan.kept}, did not fit {plan.skipped}, stop {plan.stop}"
            )
