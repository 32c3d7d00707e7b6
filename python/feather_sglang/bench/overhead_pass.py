"""What the plugin adds to a pass of SGLang's real Scheduler, in one process: hooks, adapter, core and index.

Counted, in wall-clock time: everything from the moment SGLang calls a hook, offers its queue a new list or asks the
queue for the next request, to the moment its own code goes on. That is: reading what changed in the batch, the plan,
each planned request handed over, the queue without the admitted, and the settling; also what we call of SGLang on the
way (the budgets). Not counted: SGLang's own pass (matching, the batch, freeing the queue that it replaced), the call of
a hook by SGLang's registry (below half a microsecond each, five or six a pass), and arrivals. Sorting rows by family is
part of the pass that decodes new rows, and shown apart. So are the three calls of the index that make a pass
(``follow``, ``plan``, ``settle``): the rest of the plugin is Python, and a microsecond or two of it is this timing.

A pass is one turn of the overlapped loop. Of every three, one finds that ``k`` rows are gone and admits as many; the
two others admit nobody: in one of them the new rows decode, in the other the next ``k`` rows come to their end.
"""

from __future__ import annotations

import gc
import itertools
import json
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sglang.srt.managers.io_struct import AbortReq

from feather_sglang.bench import engine
from feather_sglang.sglang import hooks, plugin, queue
from feather_sglang.sglang.adapter import Adapter
from feather_sglang.sglang.row_order import RowOrder

WAITING, RUNNING = 5_000, 256
ADMITTED = (1, 8, 64)
FAMILIES, SHARED, OWN, OUTPUT = 16, 448, 64, 1_024
ROUNDS = 200
"""Of three passes, for each k, after a quarter as many that warm up."""


class Clock:
    """Nanoseconds between ``start`` and ``stop``, which may not be nested, less what reading the clock takes."""

    def __init__(self) -> None:
        self._spent = self._windows = 0
        for _ in range(10_000):
            self.start()
            self.stop()
        self._empty = self._spent / self._windows
        self.take()

    def start(self) -> None:
        self._windows += 1
        self._spent -= time.perf_counter_ns()

    def stop(self) -> None:
        self._spent += time.perf_counter_ns()

    def take(self) -> float:
        """Microseconds since the last call."""
        spent = self._spent - self._windows * getattr(self, "_empty", 0)
        self._spent = self._windows = 0
        return spent / 1000

    def around(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """The hook, timed but for the original that it calls."""

        def timed(original: Callable[..., Any], *args: Any, **named: Any) -> Any:
            def upstream(*args: Any, **named: Any) -> Any:
                self.stop()
                try:
                    return original(*args, **named)
                finally:
                    self.start()

            self.start()
            try:
                return hook(upstream, *args, **named)
            finally:
                self.stop()

        return timed

    def beside(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls nothing of SGLang's that would come back here, timed."""

        def timed(*args: Any, **named: Any) -> Any:
            self.start()
            try:
                return call(*args, **named)
            finally:
                self.stop()

        return timed

    def apart(self, call: Callable[..., Any], other: Clock) -> Callable[..., Any]:
        """A function that is called while this clock runs, on another."""

        def timed(*args: Any, **named: Any) -> Any:
            self.stop()
            other.start()
            try:
                return call(*args, **named)
            finally:
                other.stop()
                self.start()

        return timed

    def each(self, generator: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """A generator, timed while it works for the next item."""

        def timed(*args: Any) -> Iterator[Any]:
            items = generator(*args)
            while True:
                self.start()
                item = next(items, None)
                self.stop()
                if item is None:
                    return
                yield item

        return timed


def time_the_plugin(clock: Clock, sorting: Clock, whole: Clock) -> None:
    """Put the clocks around all that SGLang calls of the plugin, and ``whole`` around SGLang's admission with
    what of that is in it; before the plugins are loaded.
    """
    rows: Any = RowOrder
    rows.arrange = clock.apart(RowOrder.arrange, sorting)
    for hook in plugin.scheduler_hooks():
        timed = clock.around if hook.kind == "around" else clock.beside
        function = timed(hook.function)
        if hook.function is hooks.admission_pass:
            function = whole.beside(function)
        setattr(sys.modules[hook.function.__module__], hook.function.__name__, function)
    adapter: Any = Adapter
    adapter.candidates = clock.each(Adapter.candidates)
    descriptor: Any = queue.Replaced
    descriptor.__set__ = _without_freeing(clock.beside(queue.Replaced.__set__))


class TimedIndex:
    """The index of a core, its calls of every pass on a clock that runs beside the plugin's."""

    def __init__(self, index: Any, clock: Clock) -> None:
        self._index = index
        for call in ("follow", "plan", "settle"):
            setattr(self, call, clock.beside(getattr(index, call)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)


def _without_freeing(replace: Callable[..., None]) -> Callable[..., None]:
    """Whoever replaces a queue of thousands frees the old list: SGLang, which does so without a plugin as well."""

    def replaced(descriptor: Any, scheduler: Any, requests: Any) -> None:
        before = scheduler.__dict__.get("waiting_queue")
        replace(descriptor, scheduler, requests)
        del before

    return replaced


class Load:
    """A queue of ``WAITING`` and a batch of ``RUNNING``, of families whose prefixes the batch holds."""

    def __init__(self, scheduler: Any, seed: int) -> None:
        self._scheduler = scheduler
        self._random = random.Random(seed)
        self._prefixes = [self._draw(SHARED) for _ in range(FAMILIES)]
        self._count = itertools.count()
        self._send(RUNNING)
        while len(scheduler.running_batch.reqs) < RUNNING:
            engine.step_overlap(scheduler)
        self.fill()

    def fill(self) -> None:
        """As many arrivals as it takes for the queue to be full again."""
        self._send(WAITING - len(self._scheduler.waiting_queue))

    def end(self, rows: int) -> None:
        """Have the oldest rows reach their length with the next result."""
        for req in self._scheduler.running_batch.reqs[:rows]:
            req.sampling_params.max_new_tokens = 1

    def _send(self, count: int) -> None:
        for number in itertools.islice(self._count, count):
            prompt = self._random.choice(self._prefixes) + self._draw(OWN)
            self._scheduler.process_input_requests([engine.tokenized(f"r{number}", prompt, OUTPUT)])

    def _draw(self, count: int) -> list[int]:
        return [self._random.randrange(2, 32_000) for _ in range(count)]


def measure(rounds: int = ROUNDS) -> dict[str, dict[str, Any]]:
    """``{"W=5000,k=8": {"median": us, "p99": us, "passes": n}}``; k = 0 are the passes in between.

    ``W=5000,k=8,index`` are the index' calls in these passes, and part of that; ``W=5000,k=8,whole`` is SGLang's
    ``_get_new_batch_prefill_raw`` in them, with the plugin's part in it;
    ``W=5000,sort`` is what sorting rows by family takes after new ones joined; it is not part of the others.

    :raises RuntimeError: if the policy failed.
    """
    clock, sorting, whole, index = Clock(), Clock(), Clock(), Clock()
    time_the_plugin(clock, sorting, whole)
    settings = {
        "max_running_requests": RUNNING,
        "max_total_tokens": 500_000,
        "chunked_prefill_size": -1,
        "mem_fraction_static": 0.5,
    }
    times: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        scheduler = engine.start(Path(folder), overlap=True, settings=settings)
        core = scheduler.feather.core
        core._index = TimedIndex(core._index, index)
        for admitted in ADMITTED:
            load = Load(scheduler, admitted)
            gc.collect()
            gc.freeze()  # as SGLang does
            for turn in range(-3 * (rounds // 4), 3 * rounds):
                if turn % 3 == 0:
                    load.end(admitted)
                before = len(scheduler.waiting_queue)
                for each in (clock, sorting, whole, index):
                    each.take()
                sorts = scheduler.feather.row_order.sorts
                engine.step_overlap(scheduler)
                spent = clock.take()
                if turn >= 0:
                    k = f"k={before - len(scheduler.waiting_queue)}"
                    times[k].append(spent)
                    if k != "k=0":
                        times[f"{k},index"].append(index.take())
                        times[f"{k},whole"].append(whole.take())
                    if scheduler.feather.row_order.sorts != sorts:
                        times["sort"].append(sorting.take())
                load.fill()
            if scheduler.feather.failures:
                raise RuntimeError("the policy failed, and what was timed is not its work")
            _drain(scheduler)
    return {f"W={WAITING},{what}": _figures(us) for what, us in times.items()}


def _drain(scheduler: Any) -> None:
    scheduler.process_input_requests([AbortReq(rid="", abort_all=True)])
    while not scheduler.is_fully_idle():
        engine.step_overlap(scheduler)
    scheduler.flush_cache()


def _figures(us: list[float]) -> dict[str, Any]:
    return {"median": float(np.median(us)), "p99": float(np.percentile(us, 99)), "passes": len(us)}


if __name__ == "__main__":
    json.dump(measure(), sys.stdout, indent=1)
