"""A real Scheduler, stepped by hand, and a log of what ran."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang.srt.managers import io_struct
from sglang.srt.managers.schedule_policy import SchedulePolicy

from feather_sglang.bench import engine
from feather_sglang.core.settings import Settings
from feather_sglang.sglang.options import chunk_size_of, read_options
from feather_sglang.sglang.start import attach


@dataclass(frozen=True)
class Batch:
    """One batch that ran."""

    step: int
    mode: str
    rids: tuple[str, ...]
    prefixes: tuple[int, ...]
    """Tokens that each prefilled row took from the cache or from earlier chunks; empty for a decode step."""
    extends: tuple[int, ...]
    """Tokens that each prefilled row computed."""

    @property
    def is_prefill(self) -> bool:
        return self.mode in ("EXTEND", "MIXED")


@dataclass
class Log:
    """The batches of a run and what became of its requests."""

    batches: list[Batch] = field(default_factory=list)
    passes: int = 0
    cached: dict[str, int] = field(default_factory=dict)
    """Tokens each request took from the cache when it was first admitted."""
    admitted: list[str] = field(default_factory=list)
    """Requests in order of admission."""
    first_token: dict[str, int] = field(default_factory=dict)
    """The pass after which a request had its first token."""
    finished: dict[str, int] = field(default_factory=dict)
    """The pass after which a request was finished."""

    @property
    def steps(self) -> int:
        """Batches run; passes without one do not count."""
        return len(self.batches)

    @property
    def cached_tokens(self) -> int:
        return sum(self.cached.values())

    def shape(self) -> list[tuple[Any, ...]]:
        """What must be equal for two runs to be equal."""
        return [(b.mode, b.rids, b.prefixes, b.extends) for b in self.batches]

    def families_in_decode(self, family_of: Callable[[str], Any]) -> float:
        """Mean number of families in a decode batch; ``family_of`` names the family of a request id."""
        counts = [len({family_of(rid) for rid in b.rids}) for b in self.batches if b.mode == "DECODE"]
        return sum(counts) / len(counts)


class Harness:
    """One Scheduler. Settings are SGLang's ``ServerArgs``, over small defaults.

    :param model: the folder for the tiny model.
    :param overlap: which loop ``step`` runs.
    :param options: the plugin's, by name, as its environment variables.
    """

    def __init__(self, model: Path, *, overlap: bool = True, options: Mapping[str, Any] | None = None, **args: Any):
        variables = {f"FEATHER_{name.upper()}": str(value) for name, value in (options or {}).items()}
        with environment(**variables):
            try:
                self.scheduler = engine.start(model, overlap=overlap, settings=args)
            except BaseException:
                self.close()
                raise
        self.server_args = self.scheduler.server_args
        self.overlap = overlap
        self.log = Log()
        self._requests: dict[str, Any] = {}
        self._started: set[str] = set()
        self._count = 0

    def close(self) -> None:
        engine.take_down()

    # --- requests ------------------------------------------------------------------------------------------------

    def send(self, prompt: Sequence[int], new: int = 8, rid: str | None = None, **fields: Any) -> str:
        """Hand one request to the Scheduler, as its event loop would; returns its id."""
        rid = rid or f"r{self._count}"
        self._count += 1
        self.control(engine.tokenized(rid, prompt, new, **fields))
        queue = self.scheduler.waiting_queue
        if len(queue) and queue[-1].rid == rid:
            self._requests[rid] = queue[-1]
        return rid

    def send_all(self, prompts: Iterable[Sequence[int]], new: int = 8, **fields: Any) -> list[str]:
        return [self.send(prompt, new, **fields) for prompt in prompts]

    def control(self, message: Any) -> None:
        """Hand any message to the Scheduler."""
        self.scheduler.process_input_requests([message])

    def abort(self, rid: str = "", *, everything: bool = False) -> None:
        self.control(io_struct.AbortReq(rid=rid, abort_all=everything))

    def pause(self, mode: str) -> None:
        self.control(io_struct.PauseGenerationReqInput(mode=mode))

    def resume(self) -> None:
        self.control(io_struct.ContinueGenerationReqInput())

    def flush(self) -> bool:
        """Drop the cache; False if requests are still running."""
        return bool(self.scheduler.flush_cache())

    def fresh(self) -> Log:
        """End what runs, drop the cache, and begin a new log."""
        self.abort(everything=True)
        self.run()
        assert self.flush()
        self.log = Log()
        self._requests.clear()
        self._started.clear()
        self._count = 0
        return self.log

    def reconfigure(
        self,
        policy: str = "feather",
        chunked_prefill_size: int | None = None,
        row_order: bool = True,
        **settings: Any,
    ) -> Log:
        """Another policy on the same Scheduler, in a second less than two: a comparison needs many.

        :param row_order: as ``--feather-row-order``.
        :param settings: fields of the core's ``Settings``, over its defaults, for ``feather``.
        """
        scheduler = self.scheduler
        log = self.fresh()
        if chunked_prefill_size is not None:
            scheduler.chunked_prefill_size = chunked_prefill_size
        scheduler.__dict__.pop("feather", None)
        scheduler.__dict__.pop("feather_rows", None)
        scheduler.waiting_queue = []
        scheduler.policy = SchedulePolicy(policy, scheduler.tree_cache, False, False, False)
        if policy == "feather":
            attach(scheduler, settings_with(scheduler, **settings), row_order=row_order)
        return log

    @property
    def queue(self) -> list[Any]:
        return list(self.scheduler.waiting_queue)

    def state(self) -> dict[str, Any]:
        """``internal_states[0]`` of ``/server_info``."""
        return self.scheduler.get_internal_state(io_struct.GetInternalStateReq()).internal_state

    # --- steps ---------------------------------------------------------------------------------------------------

    def step(self) -> Batch | None:
        """One pass of the loop that the Scheduler would run; what ran, if anything."""
        ran: list[Batch | None] = []
        step = engine.step_overlap if self.overlap else engine.step_normal
        step(self.scheduler, lambda batch: ran.append(self._record(batch)))
        self.log.passes += 1
        self._note_outputs()
        return ran[0]

    def run(self, passes: int = 5_000) -> Log:
        """Step until nothing is left."""
        empty = 0
        for _ in range(passes):
            empty = 0 if self.step() is not None else empty + 1
            if empty >= 3 and self.is_idle():
                return self.log
        raise AssertionError(f"not idle after {passes} passes: {len(self.queue)} waiting")

    def loop(self, passes: int = 1_000) -> Log:
        """Step as the event loop does, what is received (ticks, too) before each pass, until nothing is left."""
        for _ in range(passes):
            self.scheduler.ingest_requests()
            if self.step() is None and self.is_idle():
                return self.log
        raise AssertionError(f"not idle after {passes} passes: {len(self.queue)} waiting")

    def is_idle(self) -> bool:
        return bool(self.scheduler.is_fully_idle())

    def _record(self, batch: Any) -> Batch | None:
        if not batch:
            return None
        mode = batch.forward_mode.name
        prefill = mode in ("EXTEND", "MIXED")
        record = Batch(
            step=self.log.passes,
            mode=mode,
            rids=tuple(r.rid for r in batch.reqs),
            prefixes=tuple(int(n) for n in batch.prefix_lens) if prefill else (),
            extends=tuple(int(n) for n in batch.extend_lens) if prefill else (),
        )
        self.log.batches.append(record)
        decoding = {r.rid for r in batch.decoding_reqs or ()} if prefill else set()
        for rid, prefix in zip(record.rids, record.prefixes, strict=False):
            if rid not in decoding and rid not in self._started:
                self._started.add(rid)
                self.log.admitted.append(rid)
                self.log.cached[rid] = prefix
        return record

    def _note_outputs(self) -> None:
        for rid, req in list(self._requests.items()):
            if req.output_ids and rid not in self.log.first_token:
                self.log.first_token[rid] = self.log.passes
            if req.finished():
                self.log.finished[rid] = self.log.passes
                del self._requests[rid]


def settings_with(scheduler: Any, **changes: Any) -> Settings:
    """The core's settings for a scheduler: the plugin's defaults, with ``changes``."""
    options = read_options({}, {})
    fields = {
        "order": options.order,
        "gate": options.gate,
        "chunk_size": chunk_size_of(options, scheduler.page_size),
        "page_size": scheduler.page_size,
        "barrier_min": options.barrier_min,
        "kv_capacity": scheduler.max_total_num_tokens,
        "hash_key": (1, 2),
    }
    return Settings(**(fields | changes))


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Environment variables for as long as this lasts."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
