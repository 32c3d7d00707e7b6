"""The progress bar of one run: tokens that the server has worked off, and requests that have ended."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]

from feather_sglang.bench import counters
from feather_sglang.bench.client import Reply
from feather_sglang.bench.target import Target
from feather_sglang.bench.workloads import Workload

_EVERY = 2.0
"""Seconds between two looks at the server: each costs it some milliseconds."""


@contextmanager
def progress(label: str, workload: Workload, target: Target, before: counters.Counters | None) -> Iterator[Any]:
    """A bar, and the function to tell each reply to.

    :param before: the server's counters; None: it has none, and the bar moves as requests end.
    """
    with tqdm(
        total=workload.tokens,
        desc=f"  {label}",
        unit="tok",
        mininterval=0.5,
        bar_format="{desc}: {percentage:3.0f}% |{bar:30}| {n_fmt}/{total_fmt} tokens{postfix} [{elapsed}]",
    ) as bar:
        watched = _Watched(bar, len(workload.requests))
        over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(watched.reached, target, before, over), daemon=True)
        if before is not None:
            watcher.start()
        try:
            yield watched.ended
            watched.reached(workload.tokens)
        finally:
            over.set()


class _Watched:
    """A bar that is moved by two threads, never backwards."""

    def __init__(self, bar: Any, requests: int) -> None:
        self._bar = bar
        self._requests = requests
        self._ended = 0
        self._tokens = 0
        self._lock = threading.Lock()
        self._show()

    def ended(self, reply: Reply) -> None:
        self._ended += 1
        self._tokens += reply.prompt_tokens + reply.output_tokens
        self._show()
        self.reached(self._tokens)

    def reached(self, tokens: int) -> None:
        with self._lock:
            self._bar.update(max(min(tokens, self._bar.total) - self._bar.n, 0))

    def _show(self) -> None:
        self._bar.set_postfix_str(f"{self._ended} of {self._requests} requests", refresh=False)


def _watch(reached: Callable[[int], None], target: Target, before: counters.Counters, over: threading.Event) -> None:
    while not over.wait(_EVERY):
        try:
            reached(counters.parse(target.get("/metrics")).since(before).tokens)
        except OSError:  # the run itself will say so
            return
