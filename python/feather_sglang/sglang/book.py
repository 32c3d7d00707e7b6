"""Which request is where: the adapter's own record, without the core and without the engine's batches."""

from __future__ import annotations

from array import array
from operator import attrgetter
from typing import Any

from feather_sglang.sglang.rows import EXPRESS, GONE, RUNNING, WAITING, Tracked, is_express

_id = attrgetter("id")


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
        self.ids: array[int] = array("q")
        """Ids of ``running``, in no particular order, but the same on all ranks."""
        self._rows: set[Any] = set()
        """The requests of ``running``."""
        self.seen: list[Any] = []
        """The engine's rows of the last pass, and those admitted since: ``_rows`` are among them."""
        self._free: list[int] = []
        self._issued = 0
        self._sequence = 0

    def enter(self, req: Any, scheduled_tokens: int) -> Tracked | None:
        """Record an arrival in the waiting queue; None: it is not the core's business.

        A retracted request keeps its id and its age.
        """
        tracked: Tracked | None = req.__dict__.get("feather")
        if tracked is None or tracked.place is GONE:
            self._sequence += 1
            tracked = Tracked(self._next_id(), req, (scheduled_tokens, self._sequence))
            req.feather = tracked
        else:
            self._forget_place(tracked)
        if is_express(req):
            tracked.place = EXPRESS
            self.express[tracked.id] = tracked
            return None
        tracked.place = WAITING
        self.waiting[tracked.id] = tracked
        return tracked

    def admit(self, tracked: Tracked) -> None:
        """A waiting request went into a batch."""
        id, req = tracked.id, tracked.req
        del self.waiting[id]
        tracked.place = RUNNING
        tracked.published = -1
        tracked.outputs_at_admission = tracked.told = len(req.output_ids)
        self.running[id] = self.computing[id] = tracked
        tracked.row = len(self.ids)
        self.ids.append(id)
        self._rows.add(req)
        self.seen.append(req)

    def release(self, tracked: Tracked) -> None:
        """It is gone; its id may be given out again."""
        self._forget_place(tracked)
        tracked.place = GONE
        tracked.req.feather = None
        self._free.append(tracked.id)

    def vanished(self, requests: list[Any]) -> list[Tracked]:
        """Running rows that are not among the engine's, by id.

        Where nothing came or went this compares two lists of the same objects, which takes a microsecond.
        """
        if requests == self.seen:
            return []
        self.seen = requests[:]
        return sorted([req.feather for req in self._rows.difference(requests)], key=_id)

    def ids_of(self, requests: list[Any]) -> set[int]:
        """The ids of those of them that run."""
        rows = (req.__dict__.get("feather") for req in requests)
        return {t.id for t in rows if t is not None and t.place is RUNNING}

    def clear(self) -> None:
        """Forget everything, as when the policy falls back for good."""
        for place in (self.waiting, self.running, self.express):
            for tracked in list(place.values()):
                self.release(tracked)
        self.seen = []

    def _forget_place(self, tracked: Tracked) -> None:
        id, place = tracked.id, tracked.place
        if place is RUNNING:
            del self.running[id]
            self.computing.pop(id, None)
            self._rows.discard(tracked.req)
            last = self.ids.pop()
            if last != id:
                self.ids[tracked.row] = last
                self.running[last].row = tracked.row
        elif place is WAITING:
            self.waiting.pop(id, None)
        elif place is EXPRESS:
            del self.express[id]

    def _next_id(self) -> int:
        if self._free:
            return self._free.pop()
        self._issued += 1
        return self._issued - 1
