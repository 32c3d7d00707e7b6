"""Which request is where: the adapter's own record, without the core and without the engine's batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from feather_sglang.sglang.rows import Place, Tracked, is_express


class Book:
    """Requests by the dense id that the core knows them by.

    The record of a request hangs on the request object (``req.feather``), so that reading a batch costs one attribute
    a row. Ids are given out again, and depend on the order of events alone: they are equal on all ranks.
    """

    def __init__(self) -> None:
        self.waiting: dict[int, Tracked] = {}
        self.running: dict[int, Tracked] = {}
        self.computing: dict[int, Tracked] = {}
        """Those of ``running`` whose prompt is still being computed."""
        self.express: dict[int, Tracked] = {}
        self._free: list[int] = []
        self._issued = 0
        self._sequence = 0

    def enter(self, req: Any, scheduled_tokens: int) -> Tracked | None:
        """Record an arrival in the waiting queue; None: it is not the core's business.

        A retracted request keeps its id and its age.
        """
        tracked: Tracked | None = req.__dict__.get("feather")
        if tracked is None or tracked.place is Place.GONE:
            self._sequence += 1
            tracked = Tracked(self._next_id(), req, (scheduled_tokens, self._sequence))
            req.feather = tracked
        else:
            self._forget_place(tracked)
        if is_express(req):
            tracked.place = Place.EXPRESS
            self.express[tracked.id] = tracked
            return None
        tracked.place = Place.WAITING
        self.waiting[tracked.id] = tracked
        return tracked

    def admit(self, tracked: Tracked) -> None:
        """It went from the queue into a batch."""
        if tracked.place is Place.EXPRESS:
            self.release(tracked)
            return
        del self.waiting[tracked.id]
        tracked.place = Place.RUNNING
        tracked.published = -1
        tracked.outputs_at_admission = tracked.told = len(tracked.req.output_ids)
        self.running[tracked.id] = self.computing[tracked.id] = tracked

    def release(self, tracked: Tracked) -> None:
        """It is gone; its id may be given out again."""
        self._forget_place(tracked)
        tracked.place = Place.GONE
        tracked.req.feather = None
        self._free.append(tracked.id)

    def vanished(self, alive: list[int]) -> list[Tracked]:
        """Running rows that the engine no longer runs. ``alive`` holds running ids only, each once."""
        if len(alive) == len(self.running):
            return []
        gone = self.running.keys() - alive
        return [self.running[id] for id in sorted(gone)]

    def alive_of(self, requests: Iterable[Any]) -> list[int]:
        """Ids of the running rows among requests of the engine, in their order."""
        return [t.id for r in requests if (t := r.__dict__.get("feather")) is not None and t.place is Place.RUNNING]

    def clear(self) -> None:
        """Forget everything, as when the policy falls back for good."""
        for place in (self.waiting, self.running, self.express):
            for tracked in list(place.values()):
                self.release(tracked)

    def _forget_place(self, tracked: Tracked) -> None:
        self.waiting.pop(tracked.id, None)
        self.running.pop(tracked.id, None)
        self.computing.pop(tracked.id, None)
        self.express.pop(tracked.id, None)

    def _next_id(self) -> int:
        if self._free:
            return self._free.pop()
        self._issued += 1
        return self._issued - 1
