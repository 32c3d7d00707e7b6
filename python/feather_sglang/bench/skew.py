"""``feather doctor --skew``: whether a decode step waits for its longest row, on this machine and attention backend.

Two batches of as many rows and as many KV tokens: in one all rows are equally long, in the other one row in sixteen
holds most of it. Where attention splits the work well, or where a step costs the sum of its lengths, both take as long,
and nothing is won by letting rows of similar length decode together.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

PAYS = 1.1
"""Ratio from which alignment can pay."""
LONG = 16
"""One row in so many is long."""


class Size(NamedTuple):
    """What is timed."""

    rows: int
    even: int
    """KV tokens of each row of the even batch."""
    short: int
    """Of the short rows of the skewed one."""
    model: dict[str, int]
    pairs: int
    """Steps of both, next to each other."""


CPU = Size(32, 512, 256, {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "head_dim": 32}, 12)
GPU = Size(
    64,
    4_096,
    2_048,
    {
        "num_hidden_layers": 4,
        "hidden_size": 4_096,
        "intermediate_size": 4_096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    100,
)
"""Attention as in an 8B model. Not run on a GPU."""


class Skew(NamedTuple):
    """Seconds of a decode step, and what they were measured on."""

    even: float
    skewed: float
    ratio: float
    """Median of the ratios of neighbours."""
    device: str
    attention_backend: str
    size: Size

    @property
    def verdict(self) -> str:
        if self.ratio >= PAYS:
            return f"alignment can pay: a skewed batch takes {self.ratio:.2f} times as long as an even one"
        return f"alignment cannot pay: a skewed batch takes {self.ratio:.2f} times as long as an even one"


def lengths_of(size: Size) -> tuple[list[int], list[int]]:
    """KV tokens of the rows of the even and of the skewed batch; the sums are equal."""
    long = size.rows // LONG
    each, rest = divmod(size.rows * size.even - (size.rows - long) * size.short, long)
    longs = [each + (i < rest) for i in range(long)]
    return [size.even] * size.rows, longs + [size.short] * (size.rows - long)


def measure(attention_backend: str | None = None) -> Skew:
    """Time both batches.

    :param attention_backend: SGLang's name of it; None: what it would choose.
    """
    import torch

    if torch.cuda.is_available():
        os.environ.setdefault("SGLANG_PLATFORM", "")  # not the CPU platform that benches set
    from feather_sglang.bench import engine

    device = "cuda" if torch.cuda.is_available() else "cpu"
    size = GPU if device == "cuda" else CPU
    even, skewed = lengths_of(size)
    slots = sum(even) + 1
    settings: dict[str, Any] = {
        "device": device,
        "dtype": "bfloat16" if device == "cuda" else "float32",
        "max_total_tokens": slots + 64,
        "max_running_requests": 2 * size.rows,
        "schedule_policy": "fcfs",
    }
    if device == "cuda" or attention_backend is not None:
        settings["attention_backend"] = attention_backend
    model = _model(size)
    scheduler = engine.start(model, overlap=False, settings=settings | {"model_path": str(model)})
    runner = scheduler.tp_worker.model_runner
    batches = [_batch(runner, lengths, 1 + i * size.rows, device) for i, lengths in enumerate((even, skewed))]
    times: list[tuple[float, float]] = []
    with torch.no_grad():
        for pair in range(size.pairs + 3):
            first = pair % 2
            seconds = {first: _timed(runner, batches[first]), 1 - first: _timed(runner, batches[1 - first])}
            times.append((seconds[0], seconds[1]))
    del times[:3]
    backend = str(scheduler.server_args.attention_backend or settings.get("attention_backend"))
    engine.take_down()
    return Skew(
        statistics.median(a for a, _ in times),
        statistics.median(b for _, b in times),
        statistics.median(b / a for a, b in times),
        device if device == "cpu" else torch.cuda.get_device_name(),
        backend,
        size,
    )


def report(skew: Skew) -> dict[str, Any]:
    """The same in plain values."""
    return {
        "device": skew.device,
        "attention_backend": skew.attention_backend,
        "rows": skew.size.rows,
        "kv_tokens": skew.size.rows * skew.size.even,
        "longest": {"even": skew.size.even, "skewed": max(lengths_of(skew.size)[1])},
        "seconds": {"even": skew.even, "skewed": skew.skewed},
        "skew_ratio": skew.ratio,
        "pays": skew.ratio >= PAYS,
        "verdict": skew.verdict,
    }


def lines(skew: Skew) -> str:
    """For people."""
    told = report(skew)
    return "\n".join(
        (
            f"device             {skew.device}",
            f"attention backend  {skew.attention_backend}",
            f"batches            {told['rows']} rows, {told['kv_tokens']:,} KV tokens; the longest row "
            f"{told['longest']['even']:,} and {told['longest']['skewed']:,}",
            f"a step             {skew.even * 1e3:.2f} ms even, {skew.skewed * 1e3:.2f} ms skewed",
            f"\n{skew.verdict}",
        )
    )


def _model(size: Size) -> Path:
    from feather_sglang.bench.tiny_llama import write_model

    return write_model(Path(tempfile.mkdtemp()), **size.model)


def _batch(runner: Any, lengths: list[int], first: int, device: str) -> Any:
    """A decode batch whose rows lie one behind the other in the KV pool.

    :param first: of its rows in SGLang's ``req_to_token``.
    """
    import torch
    from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode

    rows = len(lengths)
    table = runner.req_to_token_pool.req_to_token
    begin = 1
    last = []
    for row, length in enumerate(lengths, first):
        table[row, :length] = torch.arange(begin, begin + length, dtype=table.dtype, device=device)
        begin += length
        last.append(begin - 1)
    cpu = torch.tensor(lengths)
    on_device = cpu.to(device)
    return ForwardBatch(
        forward_mode=ForwardMode.DECODE,
        batch_size=rows,
        input_ids=torch.arange(10, 10 + rows, device=device),
        req_pool_indices=torch.arange(first, first + rows, device=device),
        seq_lens=on_device,
        seq_lens_cpu=cpu,
        seq_lens_sum=sum(lengths),
        out_cache_loc=torch.tensor(last, device=device),
        positions=on_device - 1,
        capture_hidden_mode=CaptureHiddenMode.NULL,
    )


def _timed(runner: Any, batch: Any) -> float:
    import torch

    if batch.seq_lens.is_cuda:
        torch.cuda.synchronize()
        began = time.perf_counter()
        runner.forward(batch)
        torch.cuda.synchronize()
        return time.perf_counter() - began
    began = time.process_time()
    runner.forward(batch)
    return time.process_time() - began
