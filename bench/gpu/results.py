"""What was measured: a JSON file and a table, written anew after every row."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.gpu.cells import AUTO, CASCADE, EIGHT, LAYERS, PLAIN, TOKEN_BYTES, Cell

SCHEMA = {"name": "feather gpu kit", "version": 1}


def row_of(cell: Cell, error: float, samples: Sequence[float], layers: int, plan_seconds: float) -> dict[str, Any]:
    """One cell. Times in seconds, of one layer; ``step_s`` is that times the model's layers."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return {
        **cell._asdict(),
        "name": cell.name,
        "rows": cell.rows,
        "total_kv": cell.total_kv,
        "distinct_kv": cell.distinct_kv,
        "error": error,
        "layer_s": middle,
        "layer_s_quartiles": [low, high],
        "samples": len(samples),
        "layers_in_turn": layers,
        "step_s": middle * LAYERS,
        "plan_s": plan_seconds,
        "distinct_bytes_per_s": cell.distinct_kv * TOKEN_BYTES / middle,
        "total_bytes_per_s": cell.total_kv * TOKEN_BYTES / middle,
    }


def ratios(rows: Sequence[Mapping[str, Any]], matrices: Mapping[int, float]) -> dict[str, Any]:
    """What the rows say, by prefix and page; a question whose rows are not there is left out.

    Throughputs are of a step of ``LAYERS`` layers: attention alone, and with the matrix products where they were timed.
    """
    time = {
        (row["kernel"], tuple(row["families"]), row["interleaved"], row["prefix"], row["page"]): row["layer_s"]
        for row in rows
    }
    found: dict[str, Any] = {}
    for prefix, page in sorted({(row["prefix"], row["page"]) for row in rows}):

        def of(
            kernel: str,
            families: tuple[int, ...],
            interleaved: bool = False,
            prefix: int = prefix,
            page: int = page,
        ) -> float | None:
            return time.get((kernel, families, interleaved, prefix, page))

        hundred, foreign = of(PLAIN, (100,)), of(PLAIN, (99, 1))
        mixed = {
            "interleaved": of(PLAIN, EIGHT, True),
            "sorted": of(PLAIN, EIGHT),
            "cascade": of(CASCADE, EIGHT),
            "sorted on the cascade's kernel": of(AUTO, EIGHT),
        }
        answers: dict[str, float | None] = {"one foreign request": _ratio(foreign, hundred)}
        for name, seconds in mixed.items():
            answers[f"8 x 100 homogeneous / 800 {name}"] = _throughput(hundred, seconds, 0.0, 0.0)
            if {100, 800} <= matrices.keys():
                answers[f"8 x 100 homogeneous / 800 {name}, matrix products included"] = _throughput(
                    hundred, seconds, matrices[100], matrices[800]
                )
        answers["800 sorted / cascade, time"] = _ratio(mixed["sorted"], mixed["cascade"])
        answers["800 interleaved / sorted, time"] = _ratio(mixed["interleaved"], mixed["sorted"])
        known = {name: value for name, value in answers.items() if value is not None}
        if known:
            found[f"prefix={prefix},page={page}"] = known
    return found


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one / other


def _throughput(hundred: float | None, eight: float | None, rest_hundred: float, rest_eight: float) -> float | None:
    if hundred is None or eight is None:
        return None
    return (100 / (hundred + rest_hundred)) / (800 / (eight + rest_eight))


def table(report: Mapping[str, Any]) -> str:
    """For people."""
    head = ["what", "layer us", "quartiles", "x 32, ms", "distinct TB/s", "error", "plan ms", "DRAM MB", "L2 hits"]
    lines = [head]
    for row in report["rows"]:
        low, high = row["layer_s_quartiles"]
        counted = row.get("counters")
        lines.append(
            [
                row["name"],
                f"{row['layer_s'] * 1e6:.1f}",
                f"{low * 1e6:.1f} - {high * 1e6:.1f}",
                f"{row['step_s'] * 1e3:.2f}",
                f"{row['distinct_bytes_per_s'] / 1e12:.2f}",
                f"{row['error']:.1e}",
                f"{row['plan_s'] * 1e3:.2f}",
                f"{counted['dram_read_bytes'] / 1e6:.0f}" if counted else "-",
                f"{counted['l2_hit_rate']:.0%}" if counted else "-",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    parts = [report["title"], "", text[0], "-" * len(text[0]), *text[1:], ""]
    for where, answers in report["ratios"].items():
        parts.append(where)
        parts += [f"  {name:<70} {value:.2f}" for name, value in answers.items()]
    parts += ["", *(f"not measured: {name} ({why})" for name, why in report["skipped"].items())]
    parts += [f"counters: {report['counters']}"]
    return "\n".join(parts)


def write(report: Mapping[str, Any], folder: Path) -> None:
    """``gpu.json`` and ``gpu.txt``; each is whole at any moment."""
    for name, text in (("gpu.json", json.dumps(report, indent=1) + "\n"), ("gpu.txt", table(report) + "\n")):
        new = folder / f"{name}.new"
        new.write_text(text)
        new.replace(folder / name)
