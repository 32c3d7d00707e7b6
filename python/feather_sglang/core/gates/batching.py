"""Gates for batch jobs: a batch is formed when the one before has made room for it, and nobody joins in between."""

from __future__ import annotations

from collections.abc import Sequence

from feather_sglang.core.gates.fixed import Fixed
from feather_sglang.core.interface import Candidate, View


class Batching(Fixed):
    """Closed, it lets nobody in, not even one past the fairness bound: nobody is passed over, and the next has it.

    Once open it stays so while a batch is being formed: in passes that admit, one directly after the other, as where a
    batch takes more than one prefill; and while requests wait for a prefix that the batch is computing.
    """

    def __init__(self) -> None:
        self._formed_in = -2
        """The step of the last pass that admitted somebody."""
        self._held = False

    def begins(self, running: int, free: int) -> bool:
        """Whether a batch may begin, beside ``running`` rows, of ``free`` ones."""
        raise NotImplementedError

    def opens(self, running: int, free: int, step: int) -> bool:
        """Whether anybody may be admitted in the pass that leads to ``step``."""
        return self.begins(running, free) or step <= self._formed_in + 1 or self._held

    def cut(self, view: View, candidates: Sequence[Candidate]) -> int:
        self._held = view.held > 0
        if candidates:
            self._formed_in = view.step
        return len(candidates)


class Offline(Batching):
    """Static batches: a batch is admitted when the last one has ended; with lanes, from one lane."""

    name = "offline"

    def begins(self, running: int, free: int) -> bool:
        return not running


class Refill(Batching):
    """A batch is admitted when so many rows are free.

    :param rows: an engine that has fewer in all begins when none runs.
    """

    name = "refill"

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def begins(self, running: int, free: int) -> bool:
        return not running or free >= self.rows
