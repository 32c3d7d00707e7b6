"""Where KV lengths lie densest: a quad-tree over 1 to 65,536 (AlignedServe, arXiv 2605.23389).

A region of the tree is a quarter of its parent, down to single lengths. Only the regions that hold somebody matter, so
they are counted instead of kept: level by level, finest first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

LONGEST = 65_536
"""Lengths beyond count as this one."""
_SIZES = tuple(4**i for i in range(9))


def densest(lengths: Sequence[int], least: int) -> tuple[int, int]:
    """The smallest region of the tree with at least ``least`` of the lengths, as (first, last) length.

    Of several the fullest, then the shortest; the whole tree if there are too few. O(levels x lengths).
    """
    for size in _SIZES:
        counts = Counter((min(length, LONGEST) - 1) // size for length in lengths)
        count, region = max(((count, -region) for region, count in counts.items()), default=(0, 0))
        if count >= least:
            return 1 - region * size, size - region * size
    return 1, LONGEST


def around(length: int, lengths: Sequence[int], least: int) -> tuple[int, int]:
    """The smallest region that has ``length`` in it and at least ``least`` of the lengths."""
    for size in _SIZES:
        region = (min(length, LONGEST) - 1) // size
        if sum((min(other, LONGEST) - 1) // size == region for other in lengths) >= least:
            return region * size + 1, (region + 1) * size
    return 1, LONGEST
