"""Lanes: waiting requests binned by the output length predicted for them (Multi-Bin Batching, arXiv 2412.04504).

Requests that end at about the same time are admitted together: lanes are served one after the other, the shortest
first, each in the order that the index has anyway. Who has waited longer than the fairness bound goes first in whatever
lane (``cht-rs/src/plan.rs``). Nothing here depends on a clock: lanes are equal on all ranks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

from feather_sglang._cht import Index, Outputs
from feather_sglang.core.interface import Request

WINDOW = 1024
"""Requests that lanes are cut by."""
RECUT = 8
"""They are cut anew when one in so many of those is new."""


class Expected:
    """What is expected of a request that waits or runs."""

    __slots__ = ("given", "id", "known", "lane", "predicted", "waits")

    def __init__(self, id: int, given: int | None) -> None:
        self.id = id
        self.given = given
        """Output tokens, as it says itself; None: it does not."""
        self.predicted = 0
        self.known = False
        """Whether the prediction is its own, and not the median of all."""
        self.lane = 0
        self.waits = True


class Lanes:
    """The lanes of one index.

    Bounds are quantiles, so that as many requests fall into each lane, of what was predicted for the last ``WINDOW``
    that arrived. (Of those that finished last, most are short if short ones go first.) They are cut anew as requests
    arrive and, where predictions are learned, finish; then whatever waits is put into its lane again. O(waiting), for
    every ``WINDOW / RECUT`` requests.

    :param count: of lanes.
    :param length: one of ``settings.LENGTHS``. What a request does not say, and no known family either, is the median
        of the last ``WINDOW`` outputs.
    """

    def __init__(self, count: int, length: str, index: Index) -> None:
        self.count = count
        self.length = length
        self.bounds: list[int] = []
        """``bounds[i]``: output tokens from which on a request belongs to a lane above i."""
        self._index = index
        self._outputs = Outputs()
        self._alive: dict[int, Expected] = {}
        self._arrived: deque[Expected] = deque(maxlen=WINDOW)
        self._ended: deque[tuple[int | None, int]] = deque(maxlen=WINDOW)
        """Of requests that finished: what was predicted (None: nothing), and what they generated."""
        self._typical = 0
        self._changes = self._cut_from = 0

    def enter(self, request: Request) -> None:
        """A request is in the waiting queue of the index."""
        given = request.predicted_new if self.length == "request" else request.max_new
        expected = Expected(request.id, given or None if self.length != "family" else None)
        self._predict([expected])
        self._place(expected)
        self._alive[request.id] = expected
        self._arrived.append(expected)
        self._changes += 1

    def admitted(self, ids: Iterable[int]) -> None:
        """These run; what was predicted for them stands."""
        for id in ids:
            if expected := self._alive.get(id):
                expected.waits = False

    def ended(self, id: int, produced: int | None) -> None:
        """A request is to leave the index. ``produced``: output tokens; None: it did not finish."""
        expected = self._alive.pop(id, None)
        if expected is None:
            return
        expected.waits = False
        if produced is not None:
            self._ended.append((expected.predicted if expected.known else None, produced))
            if self.length == "family":
                self._predict([expected])  # more is known than when it came
                self._outputs.learn(self._index, id, produced)
                self._changes += 1

    def cut(self) -> None:
        """Cut the lanes anew, if it is time to. To be called before a plan."""
        if not self._changes or self._changes * RECUT < self._cut_from:
            return
        self._changes, self._cut_from = 0, len(self._arrived)
        if self._ended:
            self._typical = sorted(produced for _, produced in self._ended)[len(self._ended) // 2]
        for id in [id for id in self._alive if id not in self._index]:  # the index was told that the engine lost it
            del self._alive[id]
        waiting = [expected for expected in self._alive.values() if expected.waits]
        self._predict(waiting)
        known = [expected for expected in self._arrived if expected.known] or self._arrived
        lengths = sorted(expected.predicted for expected in known)
        self.bounds = [_cut(lengths, len(lengths) * lane // self.count) for lane in range(1, self.count)]
        for expected in waiting:
            self._place(expected)

    def for_batch(self, rows: int) -> int:
        """The first lane in which enough wait for a batch of so many rows, else that in which most do."""
        waiting = self._waiting()
        return next((lane for lane, n in enumerate(waiting) if n >= rows), waiting.index(max(waiting)))

    def succeed(self, other: Lanes) -> None:
        """Go on with what the lanes of another index learned, after what waits and runs was handed over."""
        if (self.count, self.length) == (other.count, other.length):
            self._outputs, self._ended, self._typical = other._outputs, other._ended, other._typical
            self._arrived.extendleft(reversed([each for each in other._arrived if each.id not in self._alive]))
            self._cut_from = 0

    def state(self) -> Mapping[str, Any]:
        """Figures for operators. ``length_error``: of the last ``WINDOW`` finished requests, by how much predictions
        missed the output, as a share of all output; None: nothing was predicted yet."""
        known = [(predicted, produced) for predicted, produced in self._ended if predicted is not None]
        total = sum(produced for _, produced in known)
        return {
            "lanes": self.count,
            "length": self.length,
            "lane_bounds": list(self.bounds),
            "lane_waiting": self._waiting(),
            "length_error": sum(abs(a - b) for a, b in known) / total if total else None,
        }

    def _waiting(self) -> list[int]:
        """Requests that wait in each lane."""
        waiting = Counter(expected.lane for expected in self._alive.values() if expected.waits)
        return [waiting[lane] for lane in range(self.count)]

    def _predict(self, requests: list[Expected]) -> None:
        if self.length == "family":
            lengths = self._outputs.predict(self._index, [expected.id for expected in requests])
        else:
            lengths = [expected.given for expected in requests]
        for expected, length in zip(requests, lengths, strict=True):
            expected.known = length is not None
            expected.predicted = self._typical if length is None else length

    def _place(self, expected: Expected) -> None:
        lane = bisect_right(self.bounds, expected.predicted)
        if lane != expected.lane:
            self._index.set_lane(expected.id, lane)
            expected.lane = lane


def _cut(lengths: list[int], at: int) -> int:
    """The first length above a cut of these, sorted, as near to ``at`` as can be: equal ones stay together."""
    start, end = bisect_left(lengths, lengths[at]), bisect_right(lengths, lengths[at])
    if at - start <= end - at:
        return lengths[start]
    return lengths[end] if end < len(lengths) else lengths[at] + 1
