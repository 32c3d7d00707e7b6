"""What the two tabular gates of the paper have in common: states, the reward, and what is remembered."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from feather_sglang.core.interface import Candidate, Step, View

State = tuple[int, int, int]
"""Rows, tip chunks lost, and peers, in buckets."""
Decision = tuple[State, bool]
"""Where, and whether the candidate was added."""
_REMEMBERED = 4096
"""Decisions of which the step is not known yet, at most."""


def bucket(rows: int, candidate: Candidate) -> State:
    """``min(rows // 4, 10)``, the tip chunks lost clipped to 5, ``min(peers // 4, 10)`` (vllm-project/vllm #42134)."""
    lost = candidate.chunks_before - candidate.chunks_after
    return min(rows // 4, 10), max(-5, min(5, lost)), min(candidate.peers // 4, 10)


class Tabular:
    """A gate that decides candidate by candidate, ADD or STOP, from a table over ``bucket``.

    The first request of an empty batch is added outright, and so is one that costs no tip where there is one, or that
    is past the fairness bound.

    **The reward** of a decision is the decode tokens per second of the step that followed it, over the time since the
    decode step before: prefill passes that admissions caused are in it. It is the rate of the whole batch, so a batch
    of one cannot game it: it pays the fixed cost of a step for one token. Steps become known when later decisions were
    made, on a server an episode of them at a time, so each decision keeps the number of the step that it led to.
    """

    name: str

    def __init__(self) -> None:
        self._pending: deque[tuple[int, Decision]] = deque(maxlen=_REMEMBERED)
        """Decisions of which the step is not known yet, each with its number."""
        self._prefill = 0.0
        self._reward = 0.0

    def cut(self, view: View, candidates: Sequence[Candidate]) -> int:
        rows = len(view.order)
        for taken, candidate in enumerate(candidates):
            if rows + taken == 0 or taken < view.overdue or candidate.chunks_before == candidate.chunks_after > 0:
                continue
            state = bucket(rows + taken, candidate)
            add = self._add(state)
            self._pending.append((view.step, (state, add)))
            if not add:
                return taken
        return len(candidates)

    def observe(self, step: Step) -> None:
        if step.kind == "prefill":
            self._prefill += max(step.seconds, 0.0)
            return
        seconds = self._prefill + step.seconds
        self._prefill = 0.0
        pending, made = self._pending, []
        while pending and pending[0][0] <= step.seq:
            made.append(pending.popleft()[1])
        if seconds > 0:
            self._reward = step.tokens / seconds
            self._learn(made, pending[0][1][0] if pending else None, self._reward)

    def _add(self, state: State) -> bool:
        raise NotImplementedError

    def _learn(self, decisions: Sequence[Decision], following: State | None, reward: float) -> None:
        """:param following: where the first of the next decisions was made."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        raise NotImplementedError


def written(state: State) -> str:
    """A state as a key of JSON."""
    return ",".join(map(str, state))


def read(table: Mapping[str, Any], columns: int) -> dict[State, list[float]]:
    """The table under such keys. Raises ValueError if it is not one of ``columns`` finite numbers a state."""
    found: dict[State, list[float]] = {}
    try:
        for key, values in table.items():
            rows, lost, peers = map(int, key.split(","))
            found[rows, lost, peers] = [float(value) for value in values]
    except (AttributeError, TypeError, ValueError):
        raise ValueError("expected a table of states, such as {'3,0,1': [...]}") from None
    if any(len(row) != columns or not all(abs(value) < 1e300 for value in row) for row in found.values()):
        raise ValueError(f"expected {columns} finite numbers for each state")
    return found
