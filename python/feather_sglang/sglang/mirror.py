"""The core, kept in step with the engine: what arrives, what changes, what leaves, and a new core if one is lost."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from feather_sglang.core.interface import Core, Row
from feather_sglang.core.settings import Settings
from feather_sglang.sglang.book import Book
from feather_sglang.sglang.rows import (
    Place,
    Tracked,
    is_computing,
    prefix_of,
    produced_by,
    request_of,
    row_of,
    unshared_request_of,
)

logger = logging.getLogger(__name__)

GROWTH_PASSES = 16
"""Passes between two looks at the output of all decoding rows: what a row grew by is told in one piece."""


class Mirror:
    """The book of one scheduler and the core that goes with it. What the core raises, its methods raise.

    :param new_core: makes a core with nothing in it.
    :param page: tokens of a page of the KV pool.
    :param clip: SGLang's ``CLIP_MAX_NEW_TOKENS``.
    """

    def __init__(self, settings: Settings, new_core: Callable[[Settings], Core], page: int, clip: int) -> None:
        self.book = Book()
        self.new_core = new_core
        self.core: Core | None = new_core(settings)
        """None: it failed; ``reconcile`` makes a new one."""
        self._settings = settings
        self._page = page
        self._clip = clip
        self._passes = 0

    def enter(self, req: Any) -> None:
        """A request came into the waiting queue."""
        core = self.core
        tracked = self.book.enter(req, core.scheduled_tokens if core is not None else 0)
        if tracked is not None and core is not None:
            self._enqueue(core, tracked)

    def release(self, tracked: Tracked, produced: int | None) -> None:
        """A request is gone. ``produced``: output tokens, if its KV went to the cache; None: it did not."""
        place = tracked.place
        if place is Place.GONE:
            return
        self.book.release(tracked)
        if place is not Place.EXPRESS and self.core is not None:
            self.core.leave(tracked.id, produced)

    def reconcile(self, running: Iterable[Any], chunked: Any) -> None:
        """Have the book and the core hold these rows and no others: what finished, was aborted or was lost leaves.

        It begins a pass of the core.

        :param running: every request that the engine runs, each once.
        :param chunked: the one of them whose prompt goes on in this pass, or None.
        """
        self._passes += 1
        alive = self.book.alive_of(running)
        gone = self.book.vanished(alive)
        if self.core is None:
            for tracked in gone:
                self.book.release(tracked)
            self._rebuild(alive)
            return
        changed = self._changes(chunked)
        leaving = [(tracked, produced_by(tracked)) for tracked in gone]
        for tracked, produced in leaving:
            if produced is not None and produced > tracked.told:
                changed.append(self._grown(tracked))
            alive.append(tracked.id)  # until its output is told
        self.core.begin(changed, alive)
        for tracked, produced in leaving:
            self.release(tracked, produced)

    def reconfigure(self, settings: Settings) -> None:
        """Go on with other settings, between two passes; ages and counts stay, and what only the old core knew to be
        cached counts as absent once."""
        before, core = self._settings, self.core
        self._settings = settings
        if core is None:
            return
        if replace(before, gate=settings.gate) == settings:
            core.change_gate(settings)
        else:
            self._rebuild(list(self.book.running), core)

    def admit(self, requests: Iterable[Any]) -> dict[int, int]:
        """Move what a pass admitted from the queue into the batch; returns, by id, the tokens their match found."""
        reused: dict[int, int] = {}
        for req in requests:
            tracked: Tracked | None = req.__dict__.get("feather")
            if tracked is None or tracked.place is Place.RUNNING:  # a chunk that goes on
                continue
            if tracked.place is Place.WAITING:
                reused[tracked.id] = prefix_of(req)
            self.book.admit(tracked)
        return reused

    def _enqueue(self, core: Core, tracked: Tracked) -> None:
        """Hand a request to the core; one that cannot be read, or that it refuses, is served and shares nothing."""
        try:
            core.enqueue(request_of(tracked, self._page, self._clip))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            logger.exception("feather: request %s shares nothing", getattr(tracked.req, "rid", "?"))
            core.enqueue(unshared_request_of(tracked, self._page))

    def _changes(self, chunked: Any) -> list[Row]:
        changed: list[Row] = []
        computing = self.book.computing
        if computing:
            for tracked in list(computing.values()):
                still = is_computing(tracked, chunked)
                if not still:
                    del computing[tracked.id]
                if (row := row_of(tracked, still)) is not None:
                    changed.append(row)
        if self._passes % GROWTH_PASSES == 0:
            chunk = self._settings.chunk_size
            rows = self.book.running.values()
            changed.extend(self._grown(t) for t in rows if len(t.req.output_ids) - t.told >= chunk)
        return changed

    def _grown(self, tracked: Tracked) -> Row:
        output = tracked.req.output_ids
        row = row_of(tracked, tracked.id in self.book.computing, grown=output[tracked.told :])
        tracked.told = len(output)
        assert row is not None
        return row

    def _rebuild(self, alive: list[int], before: Core | None = None) -> None:
        """A new core from what waits and runs.

        :param before: the one whose clock goes on; without one it starts anew, and the order of arrival stays.
        """
        core = self.new_core(self._settings)
        rows: list[Row] = []
        book = self.book
        for place in (book.running, book.waiting):
            for tracked in sorted(place.values(), key=lambda t: t.arrival):
                if before is None:
                    tracked.arrival = (core.scheduled_tokens, tracked.arrival[1])
                tracked.published, tracked.told = -1, len(tracked.req.output_ids)
                self._enqueue(core, tracked)
        for tracked in book.running.values():
            row = row_of(tracked, tracked.id in book.computing)
            assert row is not None
            rows.append(row)
        core.begin(rows, alive)
        if before is not None:
            core.succeed(before)
        self.core = core
        logger.log(
            logging.WARNING if before is None else logging.INFO,
            "feather: rebuilt with %d waiting and %d running requests",
            len(book.waiting),
            len(alive),
        )
