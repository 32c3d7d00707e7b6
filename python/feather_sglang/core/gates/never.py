"""The gate that never stops."""

from __future__ import annotations

from collections.abc import Sequence

from feather_sglang.core.gates.fixed import Fixed
from feather_sglang.core.interface import Candidate, View


class Never(Fixed):
    """Takes every candidate: the batch is filled as far as it goes."""

    name = "never"

    def cut(self, view: View, candidates: Sequence[Candidate]) -> int:
        return len(candidates)
