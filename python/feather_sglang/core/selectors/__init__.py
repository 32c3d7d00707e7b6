"""Selectors: which rows decode when rows may be chosen.

What fits, who is parked and who comes back is decided in ``core.parking``, for all of them.
"""

from __future__ import annotations

from feather_sglang.core.interface import Selector
from feather_sglang.core.selectors.aligned import Aligned
from feather_sglang.core.selectors.all import All
from feather_sglang.core.selectors.families import Families
from feather_sglang.core.settings import Settings


def make_selector(settings: Settings) -> Selector:
    """The selector that the settings name (one of ``settings.DECODES``)."""
    if settings.decode == "aligned":
        return Aligned(settings.align_rows, int(settings.align_share * settings.kv_capacity))
    return Families() if settings.decode == "families" else All()
