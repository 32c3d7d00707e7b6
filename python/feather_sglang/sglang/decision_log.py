"""The decision log, ``--feather-log FILE``: one JSON object a line for each pass that planned, for people and ``jq``.

It holds ids and counts of tokens; no prompts, no tokens, nothing that separates namespaces. At ``LIMIT_BYTES`` the
file becomes ``FILE.1``, in place of the one before, so a server keeps at most twice as much. A disk that is full ends
the log with one warning, and nothing else.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from feather_sglang.core.interface import Admissions, Candidate, Limits
from feather_sglang.core.settings import Settings
from feather_sglang.sglang.book import Book
from feather_sglang.sglang.rows import Tracked

logger = logging.getLogger(__name__)

LIMIT_BYTES = 64 << 20


class DecisionLog:
    """A log of one scheduler.

    :param lost: called once, if the log ends because it cannot be written.
    """

    def __init__(self, path: Path, lost: Callable[[], None], limit: int = LIMIT_BYTES) -> None:
        self.path = path
        self._lost = lost
        self._limit = limit
        self._file: TextIO | None = None
        self._size = 0
        self._line: dict[str, Any] | None = None
        self._guarded(self._open)

    def planned(
        self,
        limits: Limits,
        plan: Admissions,
        *,
        settings: Settings,
        number: int,
        before: Mapping[str, Any],
        book: Book,
        held_for: Mapping[int, int],
    ) -> None:
        """Take down a plan; ``settled`` writes it.

        :param number: of the pass.
        :param before: the core's state before the plan.
        :param book: nothing of the plan is admitted in it yet.
        :param held_for: see ``Core.held_for``.
        """
        if self._file is None or not (plan.order or plan.held or plan.stop):
            return
        clock = before["scheduled_tokens"]
        self._line = {
            "pass": number,
            "time": round(time.time(), 3),
            "scheduled_tokens": clock,
            "state": {
                "batch": before["running"],
                "tip_tokens": before["tip_chunks"] * settings.chunk_size,
                "total_kv": before["total_kv"],
                "distinct_kv": before["distinct_kv"],
                "waiting": before["waiting"],
            },
            "limits": {"rows": limits.rows, "kv_tokens": limits.kv_tokens, "prefill_tokens": limits.prefill_tokens},
            "order": settings.order,
            "gate": settings.gate,
            "admit": _admitted(plan.order, book.waiting, settings, clock),
            "held": plan.held,
            "held_for": {_rid(book, id): requests for id, requests in held_for.items()},
            "kept_rows": plan.kept,
            "did_not_fit": plan.skipped,
            "stop": plan.stop,
        }

    def settled(self, admitted: Sequence[tuple[Tracked, int]], refused: Sequence[Tracked]) -> None:
        """What SGLang did with the plan."""
        line, self._line = self._line, None
        if line is None:
            return
        line["cached"] = {tracked.req.rid: reused for tracked, reused in admitted}
        line["refused"] = [tracked.req.rid for tracked in refused]
        self._guarded(self._write, json.dumps(line, separators=(",", ":"), default=str) + "\n")

    def close(self) -> None:
        """End the log."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:
                pass

    def _open(self) -> None:
        self._file = self.path.open("a", encoding="utf-8")
        self._size = self._file.tell()

    def _write(self, text: str) -> None:
        assert self._file is not None
        if self._size and self._size + len(text) > self._limit:
            self._file.close()
            os.replace(self.path, f"{self.path}.1")
            self._open()
        self._file.write(text)
        self._file.flush()
        self._size += len(text)

    def _guarded(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except (OSError, ValueError) as error:
            logger.warning("feather: the decision log %s ends here, because it cannot be written: %s", self.path, error)
            self.close()
            self._lost()


def _admitted(
    order: Sequence[Candidate], waiting: Mapping[int, Tracked], settings: Settings, clock: int
) -> list[dict[str, Any]]:
    """The candidates of a plan, each with what it costs and why it is next."""
    lines = []
    named: set[int] = set()
    queue = iter(waiting.values())
    first = next(queue, None)
    for candidate in order:
        tracked = waiting.get(candidate.id)
        if tracked is None:
            continue
        named.add(candidate.id)
        age, held = clock - tracked.arrival[0], candidate.add_total - candidate.add_distinct
        is_oldest = first is None or tracked.arrival <= first.arrival
        while first is not None and first.id in named:
            first = next(queue, None)
        lines.append(
            {
                "rid": tracked.req.rid,
                "why": _why(settings, age=age, held=held, is_oldest=is_oldest),
                "age_tokens": age,
                "computes": candidate.uncomputed,
                "adds": candidate.add_distinct,
                "shares": held,
                "tip_tokens": [n * settings.chunk_size for n in (candidate.chunks_before, candidate.chunks_after)],
                "peers": candidate.peers,
            }
        )
    return lines


def _rid(book: Book, id: int) -> str:
    tracked = book.running.get(id) or book.waiting.get(id)  # named in this plan
    return str(tracked.req.rid) if tracked is not None else str(id)


def _why(settings: Settings, *, age: int, held: int, is_oldest: bool) -> str:
    if age > settings.max_wait_tokens:
        return "it waited longer than the bound"
    if is_oldest:
        return "oldest"
    if settings.order == "missing":
        return "adds fewest tokens, by age"
    if held >= settings.barrier_min:
        return f"the batch holds {held} tokens of it"
    return "next in age: older ones are held back or do not fit"
