"""Every row that fits decodes."""

from __future__ import annotations

from typing import Any

from feather_sglang.core.interface import Decode, Limits, Step, View


class All:
    name = "all"

    def select(self, view: View, limits: Limits) -> Decode | None:
        return None

    def observe(self, step: Step) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}
