"""Host memory for the KV of parked rows: one piece, allocated at the start, in ranges of tokens.

On an NVIDIA GPU it is pinned, and copies run on a stream of their own, so the scheduler's thread never waits for one:

- out: the slots of a row of which nothing is in flight are read beside the forward pass that is running; the next one,
  which may be given those slots, waits for the copy.
- in: the slots may still be used by the forward pass that is running (a row that finished in flight decodes once
  more), so the copy waits for that, and the next forward pass waits for the copy.

That part has not been run on a GPU. Elsewhere copies are done when the call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Ranges:
    """Ranges of ``size`` tokens, first fit."""

    def __init__(self, size: int) -> None:
        self._free = [(0, size)] if size else []
        """(begin, end), ascending, no two of them adjacent."""

    @property
    def free(self) -> int:
        return sum(end - begin for begin, end in self._free)

    @property
    def largest(self) -> int:
        """Tokens of the largest free range: whatever adds up to no more can be taken, in any pieces."""
        return max((end - begin for begin, end in self._free), default=0)

    def take(self, size: int) -> int | None:
        """The beginning of a range that is now taken; None: there is none of this size."""
        for i, (begin, end) in enumerate(self._free):
            if end - begin >= size:
                self._free[i : i + 1] = [(begin + size, end)] if end - begin > size else []
                return begin
        return None

    def give(self, begin: int, size: int) -> None:
        """A range that was taken is free again."""
        end = begin + size
        i = next((i for i, (other, _) in enumerate(self._free) if other > begin), len(self._free))
        if i < len(self._free) and self._free[i][0] == end:
            end = self._free.pop(i)[1]
        if i and self._free[i - 1][1] == begin:
            i -= 1
            begin = self._free.pop(i)[0]
        self._free.insert(i, (begin, end))


class HostSlab:
    """:param buffers: the KV pool on the device, one tensor a layer (and for K and V), each ``[slots, ...]``.
    :param tokens: to hold.
    :param streams: those that use the KV pool, of an NVIDIA GPU; none elsewhere.
    """

    def __init__(self, buffers: Sequence[torch.Tensor], tokens: int, streams: Sequence[Any] = ()) -> None:
        self.tokens = tokens
        self.ranges = Ranges(tokens)
        self._buffers = buffers
        self._streams = streams
        self._own = torch.cuda.Stream() if streams else None
        self._host = [
            torch.empty((tokens, *buffer.shape[1:]), dtype=buffer.dtype, pin_memory=bool(streams)) for buffer in buffers
        ]

    def save(self, begin: int, slots: torch.Tensor) -> None:
        """Copy slots of the device (int64, on it, ``[n]``) to the range that begins there."""
        with _Aside(self._own, (torch.cuda.current_stream(),) if self._streams else (), self._streams, slots):
            for host, buffer in zip(self._host, self._buffers, strict=True):
                host[begin : begin + len(slots)].copy_(buffer[slots], non_blocking=True)

    def load(self, begin: int, slots: torch.Tensor) -> None:
        """Copy a range to slots of the device."""
        with _Aside(self._own, self._streams, self._streams, slots):
            for host, buffer in zip(self._host, self._buffers, strict=True):
                buffer[slots] = host[begin : begin + len(slots)].to(buffer.device, non_blocking=True)


class _Aside:
    """Runs on a stream of its own, after what ``before`` has now, ahead of what ``after`` gets next; None: in line."""

    def __init__(self, own: Any, before: Sequence[Any], after: Sequence[Any], slots: torch.Tensor) -> None:
        self._own = own
        self._before = before
        self._after = after
        self._slots = slots

    def __enter__(self) -> None:
        if self._own is None:
            return
        for stream in self._before:
            self._own.wait_stream(stream)
        self._slots.record_stream(self._own)
        self._context = torch.cuda.stream(self._own)
        self._context.__enter__()

    def __exit__(self, *error: object) -> None:
        if self._own is None:
            return
        self._context.__exit__(*error)
        for stream in self._after:
            stream.wait_stream(self._own)
