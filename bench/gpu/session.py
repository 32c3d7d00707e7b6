"""One run on a GPU: build the kernels, check them, time row after row while the budget lasts, read counters."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import flashinfer
import torch
from torch import Tensor

from bench.gpu import counters, results, timing
from bench.gpu.cells import AUTO, CASCADE, PLAIN, SHAPE, Cell, Layout, cells
from bench.gpu.kernels import WORKSPACE_BYTES, Classes, Planned, planned
from bench.gpu.reference import MOST_ERROR, error
from bench.gpu.rehearsal import SMALL

CLASSES = Classes(flashinfer.BatchDecodeWithPagedKVCacheWrapper, flashinfer.MultiLevelCascadeAttentionWrapper)
BUILD_SHARE = 0.6
"""Of the budget, for building kernels; what is not built by then is left out."""
COUNTED = 9
"""Rows whose counters are read: the first ones, once they were timed."""
ROW_SECONDS = 15.0
"""Left of the budget, at least, for another row to begin."""


class Session:
    """:param deadline: by ``time.monotonic()``.
    :param folder: for the results.
    """

    def __init__(
        self, deadline: float, folder: Path, command: str, versions: dict[str, str], installed: Sequence[str]
    ) -> None:
        self._deadline = deadline
        self._folder = folder
        self._began = time.monotonic()
        self._matrices: dict[int, float] = {}
        self._counted: str | None = None
        self._report: dict[str, Any] = {
            "schema": results.SCHEMA,
            "title": f"FlashInfer {versions['flashinfer']}, Llama-3-8B attention in bf16",
            "command": command,
            "versions": versions,
            "installed": list(installed),
            "machine": {},
            "build_s": {},
            "small_errors": {},
            "matrix_products_layer_s": {},
            "rows": [],
            "ratios": {},
            "skipped": {},
            "counters": "not read",
        }

    def run(self) -> int:
        """0; 1 if no row could be measured. Whatever ends it, what was measured is on disk."""
        built = self._build()
        self._report["machine"] = timing.device()
        self._report["title"] += f", {self._report['machine']['accelerator']}"
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        sound = [kernel for kernel in built if self._sound(kernel, workspace)]
        chosen = cells()
        pool = timing.Pool(chosen, self._report["machine"]["l2_bytes"])
        for number, cell in enumerate(chosen):
            if cell.kernel not in sound:
                self._report["skipped"].setdefault(cell.name, "its kernel was not built, or was wrong")
            elif self._left() < ROW_SECONDS:
                self._report["skipped"][cell.name] = "the budget was spent"
            else:
                self._row(cell, pool, workspace)
            if number == COUNTED - 1:
                self._besides(chosen[:COUNTED])
            self._write()
        print(f"\n{results.table(self._report)}\n{time.monotonic() - self._began:.0f} s")
        return 0 if self._report["rows"] else 1

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _build(self) -> list[str]:
        """Kernels that were built, in processes of their own: two at a time, and each can be given up."""
        limit = time.monotonic() + BUILD_SHARE * self._left()
        environment = os.environ | {"MAX_JOBS": str(max(2, (os.cpu_count() or 2) // 2))}
        running = {}
        for kernel in (PLAIN, CASCADE):
            log = self._folder / f"build-{kernel}.log"
            with log.open("w") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "bench.gpu", "--build", kernel],
                    env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            running[kernel] = (process, log, time.monotonic())
        built = []
        for kernel, (process, log, began) in running.items():
            try:
                status: int | str = process.wait(max(1.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                status = "given up for the budget's sake"
            self._report["build_s"][kernel] = time.monotonic() - began
            if status == 0:
                # The decode wrapper on the cascade's kernel needs nothing more.
                built += [kernel, AUTO] if kernel == CASCADE else [kernel]
            else:
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                self._report["skipped"][f"everything on {kernel}"] = f"its build ended with {status}: {last}"
            print(f"built {kernel}: {status} after {self._report['build_s'][kernel]:.0f} s", flush=True)
        return built

    def _sound(self, kernel: str, workspace: Tensor) -> bool:
        """Whether small batches come out right: before anything is timed."""
        right = True
        for cell in (each for each in SMALL if each.kernel == kernel):
            try:
                found = small(cell, workspace)
            except Exception as failure:  # of whatever kind: it is FlashInfer's
                found = float("inf")
                self._report["skipped"][cell.name] = f"{type(failure).__name__}: {failure}"
            self._report["small_errors"][cell.name] = found
            print(f"{'right' if found <= MOST_ERROR else 'WRONG'}: {cell.name}, error {found:.1e}", flush=True)
            right = right and found <= MOST_ERROR
        return right

    def _row(self, cell: Cell, pool: timing.Pool, workspace: Tensor) -> None:
        try:
            ready, layout, query = prepared(cell, workspace)
            caches = pool.of(cell)
            found = error(ready.run(query, caches[0]), query, layout, caches[0])
            if found > MOST_ERROR:
                self._report["skipped"][cell.name] = f"wrong: error {found:.1e}"
                return
            samples = timing.seconds_a_layer(lambda layer: ready.run(query, caches[layer]), len(caches))
        except Exception as failure:  # one row must not cost the others
            self._report["skipped"][cell.name] = f"{type(failure).__name__}: {failure}"
            return
        self._report["rows"].append(results.row_of(cell, found, samples, len(caches), ready.plan_seconds))
        print(f"{cell.name}: {statistics.median(samples) * 1e6:.1f} us a layer", flush=True)

    def _besides(self, counted: Sequence[Cell]) -> None:
        """What the first rows are read with: the matrix products of a layer, and the counters."""
        for rows in (100, 800):
            self._matrices[rows] = statistics.median(timing.matrices(rows))
        self._report["matrix_products_layer_s"] = {str(rows): each for rows, each in self._matrices.items()}
        self._write()
        timed = {row["name"]: row for row in self._report["rows"]}
        numbers = [i for i, cell in enumerate(counted) if cell.name in timed]
        torch.cuda.empty_cache()
        try:
            command = ["-m", "bench.gpu", "--profile", *map(str, numbers)]
            found = counters.read(command, min(150.0, self._left() / 3))
        except counters.Unavailable as reason:
            self._report["counters"] = f"not read: {reason}"
            return
        self._report["counters"] = f"of one layer, by ncu, caches emptied before every kernel: {len(found)} rows"
        for number, counts in zip(numbers, found, strict=False):
            timed[counted[number].name]["counters"] = counts

    def _write(self) -> None:
        self._report["machine"]["nvidia_smi_last"] = timing.clocks()
        self._report["ratios"] = results.ratios(self._report["rows"], self._matrices)
        results.write(self._report, self._folder)


def prepared(cell: Cell, workspace: Tensor) -> tuple[Planned, Layout, Tensor]:
    """Attention, layout and queries of a cell."""
    layout = Layout.of(cell, "cuda")
    generator = torch.Generator("cuda").manual_seed(2)
    query = torch.randn(
        cell.rows, SHAPE.query_heads, SHAPE.head_size, dtype=SHAPE.query_type, device="cuda", generator=generator
    )
    return planned(cell, layout, CLASSES, workspace), layout, query


def small(cell: Cell, workspace: Tensor) -> float:
    """Error of a small cell."""
    ready, layout, query = prepared(cell, workspace)
    cache = timing.Pool([cell], 0).of(cell)[0]
    return error(ready.run(query, cache), query, layout, cache)


def build(kernel: str) -> None:
    """In a process of its own: runs a small batch, and so builds what it needs."""
    cell = next(each for each in SMALL if each.kernel == kernel)
    small(cell, torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda"))


def profile(numbers: Sequence[int]) -> None:
    """In a process under ncu: one layer of each of these cells."""
    chosen = [cells()[number] for number in numbers]
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    pool = timing.Pool(chosen, 0)
    layers = []
    for cell in chosen:
        ready, _, query = prepared(cell, workspace)
        cache = pool.of(cell)[0]
        ready.run(query, cache)
        layers.append(partial(ready.run, query, cache))
    counters.profiled(layers)
