"""A simulated engine for each policy: Feather's core as it serves, or one of SGLang's own."""

from __future__ import annotations

from typing import Any

from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.core.settings import Settings
from feather_sglang.simulate.cost import Cost
from feather_sglang.simulate.engine import Engine, Machine
from feather_sglang.simulate.pool import Pool
from feather_sglang.simulate.upstream import POLICIES, Upstream
from feather_sglang.simulate.workload import Source


def make_engine(policy: str, source: Source, cost: Cost, machine: Machine, **options: Any) -> Engine:
    """An engine that schedules by ``policy``: ``feather``, or one of ``upstream.POLICIES``.

    :param options: of ``Engine``; and of ``Settings``, for ``feather``.
    :raises ValueError: if there is no such policy, or an option is out of range.
    """
    of_engine = {name: options.pop(name) for name in ("noise", "episode", "expected", "keep_served") if name in options}
    if policy == "feather":
        settings = Settings(chunk_size=machine.level_tokens, kv_capacity=machine.kv_tokens, **options)
        return Engine(SchedulerCore(settings), source, cost, machine, **of_engine)
    if policy not in POLICIES:
        raise ValueError(f"policy {policy!r}: expected one of feather, {', '.join(POLICIES)}")
    pool = Pool(machine.kv_tokens, machine.level_tokens)
    core = Upstream(policy, pool)
    return Engine(core, source, cost, machine, pool=pool, chunk_limit=core.chunk_limit, **of_engine)
