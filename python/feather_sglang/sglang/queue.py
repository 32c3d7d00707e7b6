"""The scheduler's waiting queue: a list that reports every change, and shows a plan once.

SGLang appends to, pops from and reassigns ``Scheduler.waiting_queue`` in a dozen places, and reads its length and order
in twice as many. A list behind a descriptor sees all of them, at O(1) a change, and leaves the order of arrival as it
is; only the one loop that admits requests is shown another order (``show``).
"""

from __future__ import annotations

from collections import UserList
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol


class Listener(Protocol):
    """What the queue reports to."""

    def entered(self, request: Any) -> None: ...
    def left(self, request: Any) -> None: ...


class WaitingQueue(UserList):  # type: ignore[type-arg]
    """The list of SGLang requests in order of arrival.

    It takes a list over, without a copy (at 5,000 requests that would cost half of what a pass may), and without
    reports: whoever replaces a queue knows what changed (``Adapter.adopt``).
    """

    def __init__(self, requests: list[Any], listener: Listener) -> None:
        self.data = requests
        self._listener = listener
        self._show: Callable[[], Iterator[Any]] | None = None

    def show(self, candidates: Callable[[], Iterator[Any]] | None) -> None:
        """Have the next iteration, and only that, go over ``candidates()`` instead; None takes it back."""
        self._show = candidates

    def __iter__(self) -> Iterator[Any]:
        show, self._show = self._show, None
        return iter(self.data) if show is None else show()

    # Nothing below goes through __iter__. What only reads, or reorders, is inherited.

    def __getitem__(self, index: Any) -> Any:
        return self.data[index]

    def __add__(self, other: Iterable[Any]) -> list[Any]:  # type: ignore[override]
        return [*self.data, *other]

    def __radd__(self, other: Iterable[Any]) -> list[Any]:  # type: ignore[override]
        return [*other, *self.data]

    def copy(self) -> list[Any]:  # type: ignore[override]
        return self.data[:]

    def append(self, request: Any) -> None:
        self.data.append(request)
        self._listener.entered(request)

    def extend(self, requests: Iterable[Any]) -> None:
        for request in list(requests):
            self.append(request)

    def __iadd__(self, requests: Iterable[Any]) -> WaitingQueue:
        self.extend(requests)
        return self

    def insert(self, index: Any, request: Any) -> None:
        self.data.insert(index, request)
        self._listener.entered(request)

    def pop(self, index: Any = -1) -> Any:
        request = self.data.pop(index)
        self._listener.left(request)
        return request

    def remove(self, request: Any) -> None:
        self.data.remove(request)
        self._listener.left(request)

    def clear(self) -> None:
        self[:] = []

    def __setitem__(self, index: Any, value: Any) -> None:
        before = self[index] if isinstance(index, slice) else [self[index]]
        after = list(value) if isinstance(index, slice) else [value]
        self.data.__setitem__(index, after if isinstance(index, slice) else value)
        self._replaced(before, after)

    def __delitem__(self, index: Any) -> None:
        before = self[index] if isinstance(index, slice) else [self[index]]
        self.data.__delitem__(index)
        self._replaced(before, [])

    def _replaced(self, before: list[Any], after: list[Any]) -> None:
        # A request that was only moved neither left nor entered.
        kept = {id(request) for request in after}
        known = {id(request) for request in before}
        for request in before:
            if id(request) not in kept:
                self._listener.left(request)
        for request in after:
            if id(request) not in known:
                self._listener.entered(request)


class Replaced:
    """The attribute ``waiting_queue`` of a scheduler: what is assigned to it goes to the adapter first.

    Reading it finds the value in the instance, as if this were not here: there is no ``__get__``.
    """

    def __set__(self, scheduler: Any, requests: list[Any]) -> None:
        adapter = scheduler.__dict__.get("feather")
        scheduler.__dict__["waiting_queue"] = adapter.adopt(requests) if adapter is not None else requests


def follow(scheduler: Any, adapter: Any) -> None:
    """Have an adapter hear of every change of a scheduler's queue, beginning with what is in it.

    A patched SGLang tells an observer; otherwise the class gets ``Replaced``, and a scheduler without an active adapter
    keeps its plain list.
    """
    queue = scheduler.waiting_queue
    if hasattr(queue, "observer"):
        queue.observer = adapter
        adapter.compare(queue[:])
        return
    # SGLang's own class, so that schedulers derived from it have it too.
    owner = next(c for c in reversed(type(scheduler).__mro__) if c.__name__ == "Scheduler")
    owner.waiting_queue = Replaced()  # type: ignore[attr-defined]
    scheduler.waiting_queue = list(queue)
