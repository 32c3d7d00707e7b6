"""What is printed and written of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feather_sglang.bench.paper.experiment import Experiment, Row


def summary(experiment: Experiment, rows: Sequence[Row]) -> dict[str, Any]:
    """For programs."""
    found = experiment.verdict(rows)
    return {
        "claim": experiment.claim,
        "source": experiment.source,
        "method": experiment.method,
        "kind": experiment.kind,
        "verdict": found.outcome,
        "asked": [part._asdict() for part in found.parts],
        "beside": [part._asdict() for part in found.beside],
        "why": found.lines(),
    }


def render(name: str, found: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """For people: the claim, a line a cell, the verdict."""
    said = "claimed by the paper's abstract" if found["source"] == "abstract" else "asked"
    lines = [f"== {name} ({said})", found["claim"], found["method"], f"[{found['kind']}]", "", *_table(rows), ""]
    return "\n".join([*lines, f"VERDICT: {found['verdict']}", *(f"  {why}" for why in found["why"])])


def _table(rows: Sequence[Row]) -> list[str]:
    """Long headings are numbered, and said above."""
    names = list(rows[0])
    heads = [name if len(name) <= 8 else f"({i})" for i, name in enumerate(names)]
    legend = [f"  {head} {name}" for head, name in zip(heads, names, strict=True) if head != name]
    lines = [heads, *([_shown(row[name]) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return legend + ["  ".join(map(str.rjust, line, widths)) for line in lines]


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
