"""The JSON object of ``feather bench overhead``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from feather_sglang.bench.overhead_measure import Cell
from feather_sglang.bench.results import Circumstances

SCHEMA = {"name": "feather bench overhead", "version": 1}
LPM = "lpm (rust tree)"
SHIPPED = "lpm as shipped (rust tree)"


def report(cells: Sequence[Cell], hash_over_read: float, circumstances: Circumstances) -> dict[str, Any]:
    """``whole_step`` is (LPM pass + matches) ÷ (forming a batch + matches), the matches being those that admitting the
    batch needs, whatever ordered it; with a forming that took no time it would be ``whole_step_ceiling``. Ratios are of
    medians."""
    compared = [cell for cell in cells if LPM in cell.times]
    return {
        "schema": SCHEMA,
        **asdict(circumstances),
        "rows": [cell.row() for cell in cells],
        "ratios": {
            "lpm_pass_over_form100": {cell.key: cell.median(LPM) / cell.median("form") for cell in compared},
            "whole_step": {cell.key: _step(cell, cell.median("form")) for cell in compared},
            "whole_step_ceiling": {cell.key: _step(cell, 0.0) for cell in compared},
            "shipped_pass_over_form100": {cell.key: cell.median(SHIPPED) / cell.median("form") for cell in compared},
        },
        "hash_over_read_bandwidth": hash_over_read,
        "insert_us": {f"T={cell.tokens}": cell.median("insert") for cell in cells},
        "form100_us": {cell.key: cell.median("form") for cell in cells},
        "undo100_us": {cell.key: cell.median("undo") for cell in cells},
        "one_prompt_us": {f"T={cell.tokens}": _one_prompt(cell) for cell in compared},
        "memory_bytes_per_request": {f"T={cell.tokens}": cell.bytes_per_request for cell in cells},
    }


def _one_prompt(cell: Cell) -> dict[str, float]:
    """What other structures take for one prompt, its tokens in the cache."""
    return {name: cell.median(name) for name in ("tree match", "tree insert", "xxh3") if name in cell.times}


def _step(cell: Cell, form: float) -> float:
    matches = cell.median("matches")
    return (cell.median(LPM) + matches) / (form + matches)
