"""How many tokens are scheduled in a second: what turns a wait in seconds into one that every rank can count."""

from __future__ import annotations

MOST = 1 << 60
"""Tokens of a bound that nothing reaches."""


class Pace:
    """The bound on waiting, in scheduled tokens, as the leader measures it.

    Time counts while something is scheduled: an idle server makes nobody wait. The pace is a mean over the last
    ``max_wait`` seconds (an exponential one, over what there is until then), so the bound is about the number of tokens
    that were scheduled in the last ``max_wait`` busy seconds.

    :param max_wait: the bound in seconds.
    :param guess: tokens a second, until a busy second is over.
    """

    LEAST_SPAN = 1.0
    """Seconds of busy time between two bounds."""

    def __init__(self, max_wait: float, guess: float) -> None:
        self.max_wait = max_wait
        self._looked: tuple[float, int] | None = None
        self._busy = 0.0
        self._tokens = 0
        self._known = 0.0
        """Busy seconds that the pace is a mean of."""
        self._per_second = guess

    @property
    def bound(self) -> int:
        """What ``max_wait`` comes to at present, in tokens."""
        return min(round(self._per_second * self.max_wait), MOST)

    def interrupt(self) -> None:
        """The time since the last look does not count."""
        self._looked = None

    def look(self, now: float, scheduled: int) -> int | None:
        """Once in each turn of the scheduler's loop.

        :param now: seconds.
        :param scheduled: tokens scheduled since the start.
        :returns: a new bound, in tokens; None: not yet.
        """
        before, self._looked = self._looked, (now, scheduled)
        if before is None or scheduled <= before[1]:
            return None
        self._busy += now - before[0]
        self._tokens += scheduled - before[1]
        if self._busy < self.LEAST_SPAN:
            return None
        self._known = min(self._known + self._busy, max(self.max_wait, self.LEAST_SPAN))
        weight = min(self._busy / self._known, 1.0)
        self._per_second += (self._tokens / self._busy - self._per_second) * weight
        self._busy, self._tokens = 0.0, 0
        return self.bound
