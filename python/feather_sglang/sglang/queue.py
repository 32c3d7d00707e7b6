"""The scheduler's waiting queue: a list that reports every change, and shows a plan once.

SGLang appends to, pops from and reassigns ``Scheduler.waiting_queue`` in a dozen places, and reads its length and order
in twice as many. A list subclass behind a property sees all of them, at O(1) a change, and leaves the order of arrival
as it is; only the one loop that admits requests is shown another order (``show``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol


class Listener(Protocol):
    """What the queue reports to."""

    def entered(self, request: Any) -> None: ...
    def left(self, request: Any) -> None: ...


class WaitingQueue(list):  # type: ignore[type-arg]
    """A list of SGLang requests in order of arrival.

    It is built without reports: whoever replaces a queue knows what changed (``Adapter.adopt``).
    """

    __slots__ = ("_listener", "_show")

    def __init__(self, requests: Iterable[Any], listener: Listener) -> None:
        super().__init__(requests)
        self._listener = listener
        self._show: Callable[[], Iterator[Any]] | None = None

    def show(self, candidates: Callable[[], Iterator[Any]] | None) -> None:
        """Have the next iteration, and only that, go over ``candidates()`` instead; None takes it back."""
        self._show = candidates

    def __iter__(self) -> Iterator[Any]:
        show, self._show = self._show, None
        return super().__iter__() if show is None else show()

    def in_order(self) -> Iterator[Any]:
        """The queue as it is, whatever is to be shown."""
        return super().__iter__()

    # Slices, copies, len and indexing never go through __iter__: they need no care.

    def append(self, request: Any) -> None:
        super().append(request)
        self._listener.entered(request)

    def extend(self, requests: Iterable[Any]) -> None:
        for request in list(requests):
            self.append(request)

    def __iadd__(self, requests: Iterable[Any]) -> WaitingQueue:  # type: ignore[misc]
        self.extend(requests)
        return self

    def insert(self, index: Any, request: Any) -> None:
        super().insert(index, request)
        self._listener.entered(request)

    def pop(self, index: Any = -1) -> Any:
        request = super().pop(index)
        self._listener.left(request)
        return request

    def remove(self, request: Any) -> None:
        super().remove(request)
        self._listener.left(request)

    def clear(self) -> None:
        self[:] = []

    def __setitem__(self, index: Any, value: Any) -> None:
        before = self[index] if isinstance(index, slice) else [self[index]]
        after = list(value) if isinstance(index, slice) else [value]
        super().__setitem__(index, after if isinstance(index, slice) else value)
        self._replaced(before, after)

    def __delitem__(self, index: Any) -> None:
        before = self[index] if isinstance(index, slice) else [self[index]]
        super().__delitem__(index)
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


def install(scheduler_class: type) -> None:
    """Put ``waiting_queue`` of the class behind a property; a second call changes nothing.

    A scheduler without an active adapter keeps its plain list.
    """
    if isinstance(scheduler_class.__dict__.get("waiting_queue"), property):
        return

    def read(scheduler: Any) -> list[Any]:
        return scheduler.__dict__["waiting_queue"]  # where the plain attribute was, too

    def write(scheduler: Any, requests: list[Any]) -> None:
        adapter = scheduler.__dict__.get("feather")
        scheduler.__dict__["waiting_queue"] = adapter.adopt(requests) if adapter is not None else requests

    scheduler_class.waiting_queue = property(read, write)  # type: ignore[attr-defined]
