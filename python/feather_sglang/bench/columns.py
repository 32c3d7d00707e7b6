"""Lines of cells as columns of text."""

from __future__ import annotations

from collections.abc import Sequence


def in_columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, the others to the right. Every line has as many cells."""
    first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            [label.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, others, strict=True))]
        ).rstrip()
        for label, *cells in lines
    ]
