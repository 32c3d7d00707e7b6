"""The cascade on FlashInfer's own kernels, for an NVIDIA GPU. The same cases as ``tests/attention``."""

from __future__ import annotations

import pytest
import torch

from feather_sglang.core.sharing import FREE, plan_sharing
from feather_sglang.sglang.attention.cascade import Cascade, Shape
from tests.attention.pool import SLOTS, Pool

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)
flashinfer = pytest.importorskip("flashinfer")

SHAPE = Shape(8, 2, 64, 0.125, torch.float16, torch.float16)
TOLERANCE = 5e-3
"""Float16 against float32."""


@pytest.fixture(scope="module")
def workspace():
    return torch.empty(128 << 20, dtype=torch.uint8, device="cuda")


def on_device(seed: int, workspace: torch.Tensor) -> tuple[Pool, Cascade, torch.Tensor, tuple[torch.Tensor, ...]]:
    pool = Pool(seed, shape=SHAPE)
    runner = Cascade(flashinfer.MultiLevelCascadeAttentionWrapper, workspace, pool.table.cuda(), SHAPE)
    return pool, runner, pool.query.half().cuda(), tuple(each.half().cuda() for each in pool.cache)


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_shared_decode_is_attention_row_by_row(seed, levels, workspace):
    """Rows that share nothing at a level have an empty segment there: FlashInfer must weigh its result with 0."""
    pool, runner, query, cache = on_device(seed, workspace)
    plan = plan_sharing(pool.paths(), FREE._replace(levels=levels))
    output = runner.plan(plan, pool.rows.cuda(), pool.lengths).run(query, cache)
    pool.check(output.float().cpu(), TOLERANCE)


@pytest.mark.parametrize("seed", range(6))
def test_a_captured_graph_is_planned_again_for_every_replay(seed, workspace):
    captured = 16
    pool, runner, query, cache = on_device(seed, workspace)
    plan = plan_sharing(pool.paths(), FREE._replace(levels=1))
    if not plan.ranges:
        pytest.skip("nothing is shared, so no graph of the cascade is replayed")
    padding = captured - len(pool.rows)
    tail_slots = torch.zeros(captured * pool.table.shape[1], dtype=torch.int32, device="cuda")
    runner.prepare_capture(captured, SLOTS, tail_slots)
    query = torch.cat([query, torch.zeros(padding, *query.shape[1:], dtype=query.dtype, device="cuda")])
    wrapper = runner.capture(torch.zeros(captured, dtype=torch.long, device="cuda"))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        wrapper.run(query, cache)  # kernels are loaded outside of the capture
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = wrapper.run(query, cache)
    rows = torch.cat([pool.rows, torch.zeros(padding, dtype=torch.long)]).cuda()
    for _ in range(3):
        runner.replay(plan, rows, pool.lengths + [1] * padding)
        graph.replay()
        torch.cuda.synchronize()
        pool.check(output.float().cpu(), TOLERANCE)
        pool.lengths = [
            length - 1 if length - 1 > tail else length for length, tail in zip(pool.lengths, plan.tails, strict=True)
        ]
