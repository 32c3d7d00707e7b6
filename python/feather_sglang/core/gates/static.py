"""The static heuristic of the paper's authors."""

from __future__ import annotations

from collections.abc import Sequence

from feather_sglang.core.gates.fixed import Fixed
from feather_sglang.core.interface import Candidate, View


class Static(Fixed):
    """The static heuristic of the authors' vLLM pull request (vllm-project/vllm #42134).

    Admit while the tip loses at most 5 chunks, or 7 if at least 10 waiting requests share what is left of it; each such
    admission raises a floor under the batch size by one, from 1 to 10. Below the floor, admit whatever comes. Where the
    source is silent: the floor is kept between passes, and the first request of an empty batch is always taken.
    """

    name = "static"
    SMALL_LOSS, LOSS_WITH_PEERS, PEERS, LOWEST, HIGHEST = 5, 7, 10, 1, 10

    def __init__(self) -> None:
        self.floor = self.LOWEST

    def cut(self, view: View, candidates: Sequence[Candidate]) -> int:
        batch = len(view.order)
        for taken, candidate in enumerate(candidates):
            lost = candidate.chunks_before - candidate.chunks_after
            allowed = self.LOSS_WITH_PEERS if candidate.peers >= self.PEERS else self.SMALL_LOSS
            if lost <= allowed:
                self.floor = min(self.floor + 1, self.HIGHEST)
            elif batch + taken > 0 and batch + taken >= self.floor:
                return taken
        return len(candidates)
