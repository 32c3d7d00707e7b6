"""What ``feather bench length`` runs on SGLang's real Scheduler, in this process: parking, and aligned decode."""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang.srt.managers.schedule_batch import ScheduleBatch

from feather_sglang.bench import engine
from feather_sglang.bench.tiny_llama import VOCABULARY

SMALL_POOL = 4_000
"""KV tokens: for some 15 of the requests."""
REQUESTS, PROMPT, OUTPUT = 40, (32, 96), (200, 300)
"""Those of the comparison of parking with retraction; least and most tokens."""

ROWS, ALIGNED_ROWS = 24, 6
SHORT, LONG, EVERY, NEW = 40, 1_500, 6, 160
"""Aligned decode: one prompt in ``EVERY`` is long; tokens."""


def parking() -> dict[str, Any]:
    """The same requests in a small pool, with ``--feather-park`` off and pressure."""
    size = {"max_total_tokens": SMALL_POOL, "schedule_conservativeness": 0.1}
    off, on = (_retracting({"park": park}, size) for park in ("off", "pressure"))
    return {
        "identical": off["answers"] == on["answers"],
        "parks": on["parks"],
        **{f"{what}_{name}": arm[what] for what in ("retractions", "recomputed") for name, arm in _named(off, on)},
    }


def aligned(repeats: int) -> dict[str, Any]:
    """Skewed lengths with ``--feather-decode`` all and aligned, in turn: whether it stands back, and what it costs."""
    options: dict[str, dict[str, Any]] = {"all": {}, "aligned": {"decode": "aligned", "align_rows": ALIGNED_ROWS}}
    speeds: dict[str, list[float]] = {name: [] for name in options}
    answers: dict[str, Any] = {}
    state: dict[str, Any] = {}
    for _ in range(repeats):
        for name, given in options.items():
            with _scheduler(given, {"max_running_requests": ROWS}) as scheduler:
                requests = _send(scheduler, [(LONG if i % EVERY == 0 else SHORT + i, NEW) for i in range(ROWS)])
                began = time.process_time()
                _run(scheduler)
                speeds[name].append(ROWS * NEW / (time.process_time() - began))
                answers[name] = [list(req.output_ids) for req in requests]
                if name == "aligned":
                    state = scheduler.feather.core.selector.state()
    ratios = [a / b for a, b in zip(speeds["aligned"], speeds["all"], strict=True)]
    return {
        "workload": "aligned decode",
        "identical": answers["all"] == answers["aligned"],
        "throughput_ratio": statistics.median(ratios),
        "throughput_ratio_spread": [min(ratios), max(ratios)],
        "repeats": repeats,
        **{name: state[name] for name in ("declined", "aligned_steps", "longest_costs")},
    }


def _named(*arms: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    return zip(("off", "on"), arms, strict=True)


def _retracting(options: Mapping[str, Any], size: Mapping[str, Any]) -> dict[str, Any]:
    draw = random.Random(0)
    lengths = [(draw.randint(*PROMPT), draw.randint(*OUTPUT)) for _ in range(REQUESTS)]
    retractions = computed = 0
    retract = ScheduleBatch.retract_decode

    def count(batch: Any, *args: Any, **named: Any) -> Any:
        nonlocal retractions
        result = retract(batch, *args, **named)
        retractions += len(result[0])
        return result

    def add(batch: Any) -> None:
        nonlocal computed
        if batch and batch.forward_mode.is_extend():
            computed += sum(batch.extend_lens)

    with _scheduler(options, size) as scheduler:
        requests = _send(scheduler, lengths, ends_early=True)
        ScheduleBatch.retract_decode = count
        try:
            _run(scheduler, add)
        finally:
            ScheduleBatch.retract_decode = retract
        rows = scheduler.__dict__.get("feather_rows")
        return {
            "answers": [list(req.output_ids) for req in requests],
            "retractions": retractions,
            "recomputed": computed - sum(prompt for prompt, _ in lengths),
            "parks": 0 if rows is None else rows.state()["parks"],
        }


@contextmanager
def _scheduler(options: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[Any]:
    """A Scheduler with the plugin's options, as its environment gives them."""
    variables = {f"FEATHER_{name.upper()}": str(value) for name, value in options.items()}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        with tempfile.TemporaryDirectory() as folder:
            scheduler = engine.start(Path(folder), overlap=True, settings=settings)
        engine.draw_weights(scheduler)
        yield scheduler
    finally:
        engine.take_down()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _send(scheduler: Any, lengths: list[tuple[int, int]], ends_early: bool = False) -> list[Any]:
    """Prompts of random tokens: (tokens, tokens to generate).

    :param ends_early: they may end sooner, so that SGLang sets aside less than that.
    """
    draw = random.Random(1)
    requests = []
    for number, (prompt, new) in enumerate(lengths):
        tokens = [draw.randrange(2, VOCABULARY) for _ in range(prompt)]
        request = engine.tokenized(f"r{number}", tokens, new)
        request.sampling_params.ignore_eos = not ends_early
        scheduler.process_input_requests([request])
        requests.append(scheduler.waiting_queue[-1])
    return requests


def _run(scheduler: Any, chosen: Any = lambda batch: None) -> None:
    while not scheduler.is_fully_idle():
        scheduler.ingest_requests()
        engine.step_overlap(scheduler, chosen)
