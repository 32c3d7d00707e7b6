"""Times of a GPU: a captured graph of several layers, replayed between two events. Clocks are left alone."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from bench.gpu.cells import SHAPE, TOKEN_BYTES, Cell
from bench.gpu.kernels import Cache

LEAST, SECONDS = 30, 0.6
"""Replays that are timed, at least, and for how long if they are short."""
MOST_LAYERS = 16
HIDDEN, FEED_FORWARD = 4096, 14336


class Pool:
    """KV of several layers, as random numbers, of which a cell uses as many as spill the L2 cache.

    A layer's KV comes back after that of all others, as in a model: measured on one layer alone, a small batch would
    find its KV in L2.
    """

    def __init__(self, cells: list[Cell], l2_bytes: int) -> None:
        self._spill = 4 * l2_bytes
        tokens = max(cell.pages * cell.page * self.layers(cell) for cell in cells)
        shape = (tokens, SHAPE.kv_heads, SHAPE.head_size)
        generator = torch.Generator("cuda").manual_seed(1)
        self._flat = tuple(
            torch.empty(shape, dtype=SHAPE.kv_type, device="cuda").normal_(generator=generator) for _ in range(2)
        )

    def layers(self, cell: Cell) -> int:
        """At least four."""
        return min(MOST_LAYERS, max(4, -(-self._spill // (cell.distinct_kv * TOKEN_BYTES))))

    def of(self, cell: Cell) -> list[Cache]:
        """The cache of each of the cell's layers."""
        tokens, layers = cell.pages * cell.page, self.layers(cell)
        size = (layers, tokens) if cell.page == 1 else (layers, cell.pages, cell.page)
        keys, values = (each[: layers * tokens].view(*size, *each.shape[1:]) for each in self._flat)
        return list(zip(keys, values, strict=True))


def seconds_a_layer(run: Callable[[int], Any], layers: int) -> list[float]:
    """Of every timed replay, divided by its layers; the first replays are not among them.

    :param run: ``run(layer)`` launches a layer.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run(0)  # kernels are loaded outside of the capture
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(layers):
            run(layer)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    samples: list[float] = []
    began = time.monotonic()
    while len(samples) < LEAST or time.monotonic() - began < SECONDS:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / layers)
    return samples


def matrices(rows: int) -> list[float]:
    """Seconds of the matrix products of one layer: what a step of these rows takes besides attention."""
    heads, kv = SHAPE.query_heads * SHAPE.head_size, 2 * SHAPE.kv_heads * SHAPE.head_size
    shapes = ((heads + kv, HIDDEN), (HIDDEN, heads), (2 * FEED_FORWARD, HIDDEN), (HIDDEN, FEED_FORWARD))
    layers = 4
    weights = [[_random(*shape) for shape in shapes] for _ in range(layers)]
    inputs = [_random(rows, shape[1]) for shape in shapes]

    def run(layer: int) -> None:
        for given, weight in zip(inputs, weights[layer], strict=True):
            functional.linear(given, weight)

    return seconds_a_layer(run, layers)


def device() -> dict[str, Any]:
    """What the GPU is, and how fast it copies: bytes read and written a second."""
    properties = torch.cuda.get_device_properties(0)
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copies = seconds_a_layer(lambda layer: target.copy_(source), 1)
    return {
        "accelerator": properties.name,
        "memory_gib": round(properties.total_memory / 2**30),
        "multiprocessors": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "copy_bytes_per_s": 2 * source.numel() / sorted(copies)[len(copies) // 2],
        "nvidia_smi": clocks(),
    }


def clocks() -> str:
    """As they are; nothing is set."""
    query = "driver_version,clocks.sm,clocks.mem,temperature.gpu,power.draw"
    try:
        return subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvidia-smi gave nothing ({error})"


def _random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=SHAPE.query_type, device="cuda") * 0.02
