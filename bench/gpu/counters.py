"""DRAM bytes and L2 hit rate of one layer, by Nsight Compute (``ncu``), where it may be used.

A child process runs the layers under it; ``ncu`` empties the caches before every kernel, as other layers' KV does in a
model. A marker kernel stands behind every cell's, so that the list of kernels can be parted.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

MARKER = "spin_kernel"
"""The kernel of ``torch.cuda._sleep``."""
METRICS = {
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_written_bytes": "dram__bytes_write.sum",
    "l2_sectors": "lts__t_sectors_op_read.sum",
    "l2_sectors_hit": "lts__t_sectors_op_read_lookup_hit.sum",
}


class Unavailable(Exception):
    """Why there are no counters."""


def read(command: Sequence[str], seconds: float) -> list[dict[str, float]]:
    """What the cells of a profiled command did, in its order.

    :param command: arguments of Python, of a program that calls ``profiled``.
    :raises Unavailable: with the reason that ncu gave.
    """
    if shutil.which("ncu") is None:
        raise Unavailable("ncu is not on the PATH")
    arguments = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    arguments += ["--profile-from-start", "off", "--metrics", ",".join(METRICS.values())]
    try:
        done = subprocess.run(
            ["ncu", *arguments, sys.executable, *command], capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"ncu took more than {seconds:.0f} s") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "==ERROR==" in line]
        raise Unavailable(f"ncu gave up: {(lines or [f'exit status {done.returncode}'])[0].strip()}")
    return parsed(done.stdout)


def parsed(output: str) -> list[dict[str, float]]:
    """Sums over the kernels of each cell.

    :raises Unavailable: if there are no figures in it.
    """
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise Unavailable("ncu printed no table")
    found: list[dict[str, float]] = []
    sums: dict[str, float] = dict.fromkeys(METRICS, 0.0)
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if not row["ID"]:  # the line of units
            continue
        if MARKER in row["Kernel Name"]:
            found.append(_of(sums))
            sums = dict.fromkeys(METRICS, 0.0)
            continue
        for name, metric in METRICS.items():
            try:
                sums[name] += float(row[metric].replace(",", ""))
            except (KeyError, ValueError):
                raise Unavailable(f"ncu knows no {metric} here: {row.get(metric)!r}") from None
    return found


def _of(sums: dict[str, float]) -> dict[str, float]:
    sectors = sums["l2_sectors"]
    return {
        "dram_read_bytes": sums["dram_read_bytes"],
        "dram_written_bytes": sums["dram_written_bytes"],
        "l2_hit_rate": sums["l2_sectors_hit"] / sectors if sectors else 0.0,
    }


def profiled(layers: Sequence[Callable[[], Any]]) -> None:
    """Runs each once where ``ncu`` looks; each has run before."""
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for layer in layers:
        layer()
        torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
