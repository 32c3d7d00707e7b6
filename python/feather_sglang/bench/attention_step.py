"""Decode steps of SGLang's real ModelRunner, on batches made by hand: all that varies is who shares which KV."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

from feather_sglang.bench import engine

TAIL = 64
"""Tokens of a row that are its own, scattered as decoding scatters them."""
BASELINE = "torch_native"


class Cell(NamedTuple):
    """One batch."""

    batch: int
    prefix: int
    families: int
    """Groups that share a prefix; as many as rows: nothing is shared."""
    order: str
    """``sorted``: families one after the other; ``interleaved``: neighbours are of different families."""
    foreign: int = 0
    """Rows, the last ones, that have a prefix of their own each."""

    @property
    def prefixes(self) -> int:
        return self.families + self.foreign

    @property
    def slots(self) -> int:
        """KV tokens that it takes, and the one that no row holds."""
        return 1 + self.prefixes * self.prefix + self.batch * TAIL


class Times(NamedTuple):
    """CPU seconds of the steps of one cell."""

    off: list[float]
    """Sharing off; ``off[i]`` was measured next to ``on[i]``."""
    on: list[float]
    baseline: list[float]
    """SGLang's own backend."""
    planning: list[float]
    """Of the steps of ``on``, the part that plans and lays out."""
    first_planning: float
    """The same for a step whose rows are new."""


class Steps:
    """One model, ready for any cell of at most ``rows`` rows and ``slots`` KV tokens, which hold random numbers."""

    def __init__(self, model: str, rows: int, slots: int) -> None:
        scheduler = engine.start(
            Path(tempfile.mkdtemp()),
            overlap=True,
            settings={
                "model_path": model,
                "load_format": "auto",
                "attention_backend": "feather-cascade",
                "schedule_policy": "fcfs",
                "max_total_tokens": slots,
                "max_running_requests": rows,
            },
        )
        self._runner = scheduler.tp_worker.model_runner
        self._cascade = self._runner.attn_backend
        self._native = TorchNativeAttnBackend(self._runner)
        generator = torch.Generator().manual_seed(1)
        pool = self._runner.token_to_kv_pool
        for layer in range(self._runner.model_config.num_hidden_layers):
            for buffer in (pool.get_key_buffer(layer), pool.get_value_buffer(layer)):
                buffer[:slots].normal_(generator=generator)

    def measure(self, cell: Cell, pairs: int, baseline: int) -> Times:
        """:param pairs: steps with sharing off and on, next to each other, in turns.
        :param baseline: steps of SGLang's own backend.
        """
        batch = self._batch(cell)
        times = Times([], [], [], [], 0.0)
        with torch.no_grad():
            first = self._step(batch, "auto")[1]
            self._step(batch, "off")
            for pair in range(pairs):
                for sharing in ("off", "on") if pair % 2 else ("on", "off"):
                    seconds, planning = self._step(batch, "auto" if sharing == "on" else "off")
                    (times.on if sharing == "on" else times.off).append(seconds)
                    if sharing == "on":
                        times.planning.append(planning)
            self._runner.attn_backend = self._native
            try:
                times.baseline.extend(self._timed(batch) for _ in range(baseline))
            finally:
                self._runner.attn_backend = self._cascade
        return times._replace(first_planning=first)

    def _step(self, batch: Any, sharing: str) -> tuple[float, float]:
        """CPU seconds of a step, and of its planning."""
        self._cascade.plans.sharing = sharing
        with _timed(self._cascade, "init_forward_metadata") as planning:
            seconds = self._timed(batch)
        return seconds, sum(planning)

    def _timed(self, batch: Any) -> float:
        began = time.process_time()
        self._runner.forward(batch)
        return time.process_time() - began

    def _batch(self, cell: Cell) -> Any:
        """Families one behind the other in the pool, and behind them the tails, a token of every row in turn."""
        rows, length = cell.batch, cell.prefix + TAIL
        row = np.arange(rows)
        of_families = rows - cell.foreign
        family = row * cell.families // of_families if cell.order == "sorted" else row % cell.families
        family[of_families:] = cell.families + np.arange(cell.foreign)
        slots = np.empty((rows, length), np.int32)
        slots[:, : cell.prefix] = 1 + family[:, None] * cell.prefix + np.arange(cell.prefix)
        tails = 1 + cell.prefixes * cell.prefix
        slots[:, cell.prefix :] = tails + np.arange(TAIL) * rows + row[:, None]
        pool = self._runner.req_to_token_pool
        indices = torch.arange(1, rows + 1)
        pool.req_to_token[indices, :length] = torch.from_numpy(slots)
        pool.req_generation[indices] += 1
        lengths = torch.full((rows,), length)
        return ForwardBatch(
            forward_mode=ForwardMode.DECODE,
            batch_size=rows,
            input_ids=torch.randint(10, 1000, (rows,), generator=torch.Generator().manual_seed(2)),
            req_pool_indices=indices,
            seq_lens=lengths,
            seq_lens_cpu=lengths,
            seq_lens_sum=rows * length,
            out_cache_loc=torch.from_numpy(slots[:, -1].astype(np.int64)),
            positions=lengths - 1,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )


@contextmanager
def _timed(owner: Any, name: str) -> Iterator[Sequence[float]]:
    """CPU seconds of every call of a method, meanwhile."""
    seconds: list[float] = []
    method = getattr(owner, name)

    def timed(*args: Any) -> Any:
        began = time.process_time()
        try:
            return method(*args)
        finally:
            seconds.append(time.process_time() - began)

    setattr(owner, name, timed)
    try:
        yield seconds
    finally:
        delattr(owner, name)
