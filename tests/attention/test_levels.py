"""The arithmetic of the cascade, run through FlashInfer's contract on the CPU, against attention row by row."""

from __future__ import annotations

import pytest
import torch

from feather_sglang.core.sharing import FREE, Range, Sharing, plan_sharing
from feather_sglang.sglang.attention.cascade import Cascade
from feather_sglang.sglang.attention.levels import Segment, arrays_of, levels_of, padded
from tests.attention.pool import SHAPE, SLOTS, Pool
from tests.attention.reference_wrapper import ReferenceWrapper


def cascade(pool: Pool) -> Cascade:
    return Cascade(ReferenceWrapper, torch.empty(1), pool.table, SHAPE)


@pytest.mark.parametrize("levels", [1, 3])
def test_shared_decode_is_attention_row_by_row(levels):
    shared = nested = 0
    for seed in range(60):
        pool = Pool(seed)
        plan = plan_sharing(pool.paths(), FREE._replace(levels=levels))
        shared += bool(plan.ranges)
        nested += plan.levels > 1
        wrapper = cascade(pool).plan(plan, pool.rows, pool.lengths)
        assert wrapper.levels == plan.levels + 1
        pool.check(wrapper.run(pool.query, pool.cache))
    assert shared > 40
    assert (nested > 10) is (levels > 1)


def test_a_captured_graph_serves_any_batch_of_its_size_and_smaller_ones():
    captured = 16
    for seed in range(30):
        pool = Pool(seed)
        plan = plan_sharing(pool.paths(), FREE._replace(levels=1))
        if not plan.ranges:
            continue
        runner = cascade(pool)
        tail_slots = torch.zeros(captured * pool.table.shape[1], dtype=torch.int32)
        runner.prepare_capture(captured, SLOTS, tail_slots)
        rows = torch.cat([pool.rows, torch.zeros(captured - len(pool.rows), dtype=torch.long)])
        wrapper = runner.capture(torch.zeros(captured, dtype=torch.long))
        query = torch.cat([pool.query, torch.zeros(captured - len(pool.query), *pool.query.shape[1:])])
        # Padding rows have one token, as SGLang pads them.
        lengths = pool.lengths + [1] * (captured - len(pool.lengths))
        for _ in range(2):  # planned again, for a step later
            assert runner.replay(plan, rows, lengths) is wrapper
            output = wrapper.run(query, pool.cache)
            pool.check(output)
            assert torch.isfinite(output).all()
            pool.lengths = [length + 1 for length in pool.lengths]
            lengths = pool.lengths + lengths[len(pool.lengths) :]
            pool.table[pool.rows, torch.tensor(pool.lengths) - 1] = torch.arange(len(pool.rows), dtype=torch.int32)
        assert wrapper.plans == 3


def test_one_wrapper_for_each_number_of_levels():
    pool = Pool(1)
    runner = cascade(pool)
    plans = [plan_sharing(pool.paths(), FREE._replace(levels=levels)) for levels in (1, 1, 4)]
    wrappers = [runner.plan(plan, pool.rows, pool.lengths) for plan in plans]
    assert wrappers[0] is wrappers[1]
    assert len({wrapper.levels for wrapper in wrappers}) == len({plan.levels for plan in plans})


def test_segments_cover_every_row_once():
    plan = Sharing(
        (Range((1, 2, 3), 0, 30, 0), Range((5, 6), 0, 9, 0), Range((2, 3), 30, 35, 1)), (0, 30, 35, 35, 0, 9, 9), 0
    )
    above, below, tails = levels_of(plan, [5, 40, 41, 42, 6, 20, 21, 1])
    assert above == [
        Segment(0, 1, 0, 0),
        Segment(1, 4, 0, 30),
        Segment(4, 5, 0, 0),
        Segment(5, 7, 0, 9),
        Segment(7, 8, 0, 0),
    ]
    assert below == [Segment(0, 2, 0, 0), Segment(2, 4, 30, 35), Segment(4, 8, 0, 0)]
    assert [(each.start, each.end) for each in tails][-3:] == [(9, 20), (9, 21), (0, 1)]
    assert padded(below, 5)[3:] == [Segment(8, 8, 0, 0)] * 2
    arrays = arrays_of([below], torch.arange(400).view(8, 50), torch.arange(8))
    assert arrays.qo_indptr[0].tolist() == [0, 2, 4, 8]
    assert arrays.kv_indptr[0].tolist() == [0, 0, 5, 5]
    assert arrays.kv_indices[0].tolist() == [130, 131, 132, 133, 134]
    assert arrays.last_page_len[0].tolist() == [0, 1, 0]


def test_rows_of_a_group_that_are_not_neighbours_are_refused():
    with pytest.raises(ValueError, match="not neighbours"):
        levels_of(Sharing((Range((0, 2), 0, 8, 0),), (8, 0, 8), 0), [9, 9, 9])
