"""What gates that learn nothing have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from feather_sglang.core.interface import Step


class Fixed:
    """A gate without memory of steps."""

    name: str

    def observe(self, step: Step) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def dump(self) -> dict[str, Any]:
        return {}

    def load(self, learned: Mapping[str, Any]) -> None:
        if learned:
            raise ValueError(f"the gate {self.name} learns nothing; expected nothing to load")
