"""The core, kept in step with the engine: what arrives, what changes, what leaves, and a new core if one is lost."""

from __future__ import annotations

import logging
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from feather_sglang.core.interface import Core, Row
from feather_sglang.core.settings import Settings
from feather_sglang.sglang.book import Book
from feather_sglang.sglang.rows import (
    EXPRESS,
    GONE,
    RUNNING,
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
"""Passes between two looks at the output of a decoding row, at least: what it grew by is told in one piece."""


class Mirror:
    """The book of one scheduler and the core that goes with it. What the core raises, its methods raise.

    :param new_core: makes a core with nothing in it.
    :param page: tokens of a page of the KV pool.
    :param clip: SGLang's ``CLIP_MAX_NEW_TOKENS``.
    :param unread: called for each request of which nothing can be read.
    """

    def __init__(
        self,
        settings: Settings,
        new_core: Callable[[Settings], Core],
        page: int,
        clip: int,
        unread: Callable[[], None],
    ) -> None:
        self.book = Book()
        self.new_core = new_core
        self.core: Core | None = new_core(settings)
        """None: it failed; ``reconcile`` makes a new one."""
        self._settings = settings
        self._page = page
        self._clip = clip
        self._unread = unread
        self._resting: Core | None = None
        """The core of a policy that was switched off: its counts go on when it is switched on."""
        self._passes = 0
        self._due: defaultdict[int, list[int]] = defaultdict(list)
        """Rows by the pass in which to look whether their output grew by a chunk; only a row's last entry counts. Their
        ids, because the rows would keep requests, with all that was sent with them, long after they finished."""

    def enter(self, req: Any) -> None:
        """A request came into the waiting queue."""
        core = self.core
        tracked = self.book.enter(req, core.scheduled_tokens if core is not None else 0)
        if core is None:
            return
        if tracked is not None:
            self._enqueue(core, tracked)
        else:
            core.leave(req.feather.id, None)  # a row that was being aborted when it was retracted

    def release(self, tracked: Tracked, produced: int | None) -> None:
        """A request is gone. ``produced``: output tokens, if its KV went to the cache; None: it did not."""
        place = tracked.place
        if place is GONE:
            return
        self.book.release(tracked)
        if place is not EXPRESS and self.core is not None:
            self.core.leave(tracked.id, produced)

    def reconcile(self, running: list[Any], chunked: Any) -> None:
        """Have the book and the core hold these rows and no others: what finished, was aborted or was lost leaves.

        It begins a pass of the core.

        :param running: every request that the engine runs, each once.
        :param chunked: the one of them whose prompt goes on in this pass, or None.
        """
        self._passes += 1
        book = self.book
        gone = book.vanished(running)
        for tracked in gone:
            book.release(tracked)
        if self.core is None:
            self._rebuild()
            return
        changed = self._changes(chunked)
        alive = book.ids
        finished: dict[int, int] = {}
        for tracked in gone:
            produced = produced_by(tracked)
            if produced is None:
                self.core.leave(tracked.id, None)
                continue
            finished[tracked.id] = produced
            if produced > tracked.told:
                changed.append(self._grown(tracked))
        if finished:
            alive = alive + array("q", finished)  # until their output is told
        self.core.begin(changed, alive, finished)

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
            self._rebuild(core)

    def restart(self, settings: Settings) -> None:
        """Begin anew, before anything came."""
        self._settings = settings
        self.core = self.new_core(settings)

    def rest(self) -> None:
        """Follow nothing any more, until ``wake``."""
        self._resting, self.core = self.core, None
        self.book.clear()

    def wake(self) -> None:
        """A new core, with the clock and the counts of the old one, and nothing in it."""
        if self._resting is not None:
            self._rebuild(self._resting)
            self._resting = None

    def bound_waits(self, tokens: int) -> None:
        """Another bound on waiting, for this core and those after it."""
        self._settings = replace(self._settings, max_wait_tokens=tokens)
        if self.core is not None:
            self.core.bound_waits(tokens)

    def admit(self, requests: Iterable[Any], planned: bool) -> list[tuple[Tracked, int]]:
        """Move what a pass admitted from the queue into the batch; returns the core's own of them, each with the tokens
        that its match found.

        :param planned: whether the core will be told of these tokens (``Core.settle``).
        """
        book = self.book
        admitted = []
        due = self._passes + max(self._settings.chunk_size, GROWTH_PASSES)
        for req in requests:
            tracked: Tracked | None = req.__dict__.get("feather")
            if tracked is None or tracked.place is RUNNING:  # a chunk that goes on
                continue
            if tracked.place is EXPRESS:
                book.release(tracked)
                continue
            book.admit(tracked)
            tracked.due = due
            tokens = prefix_of(req)
            if planned:
                tracked.published = tokens
            admitted.append((tracked, tokens))
        if admitted:
            self._due[due] += [tracked.id for tracked, _ in admitted]
        return admitted

    def _enqueue(self, core: Core, tracked: Tracked) -> None:
        """Hand a request to the core; one that cannot be read, or that it refuses, is served and shares nothing."""
        try:
            core.enqueue(request_of(tracked, self._page, self._clip))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            logger.exception("feather: request %s shares nothing", getattr(tracked.req, "rid", "?"))
            self._unread()
            core.enqueue(unshared_request_of(tracked, self._page))

    def _changes(self, chunked: Any) -> list[Row]:
        changed: list[Row] = []
        computing = self.book.computing
        for tracked in list(computing.values()):
            still = is_computing(tracked, chunked)
            if not still:
                del computing[tracked.id]
            if not still or tracked.published != tracked.req.kv.cache_protected_len:
                changed.append(row_of(tracked, still))
        chunk = self._settings.chunk_size
        running = self.book.running
        for id in self._due.pop(self._passes, ()):
            row = running.get(id)
            if row is not None and row.due == self._passes:
                grown = len(row.req.output_ids) - row.told
                if grown >= chunk:
                    changed.append(self._grown(row))
                    grown = 0
                self._look_at(row, chunk - grown)
        return changed

    def _look_at(self, tracked: Tracked, tokens: int) -> None:
        """Look at the output of a row again when it may have grown by so many tokens."""
        tracked.due = self._passes + max(tokens, GROWTH_PASSES)
        self._due[tracked.due].append(tracked.id)

    def _grown(self, tracked: Tracked) -> Row:
        output = tracked.req.output_ids
        row = row_of(tracked, tracked.id in self.book.computing, output[tracked.told :])
        tracked.told = len(output)
        return row

    def _rebuild(self, before: Core | None = None) -> None:
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
        self._due.clear()
        for tracked in book.running.values():
            rows.append(row_of(tracked, tracked.id in book.computing))
            self._look_at(tracked, self._settings.chunk_size)
        core.begin(rows, book.ids)
        if before is not None:
            core.succeed(before)
        self.core = core
        logger.log(
            logging.WARNING if before is None else logging.INFO,
            "feather: rebuilt with %d waiting and %d running requests",
            len(book.waiting),
            len(book.running),
        )
