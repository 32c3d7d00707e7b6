"""Host memory for parked KV: ranges that neither overlap nor get lost, and copies that come back as they went."""

from __future__ import annotations

import random

import pytest
import torch

from feather_sglang.sglang.parking.slab import HostSlab, Ranges


@pytest.mark.parametrize("seed", range(20))
def test_ranges_neither_overlap_nor_get_lost(seed):
    draw = random.Random(seed)
    size = draw.randrange(1, 300)
    ranges, taken = Ranges(size), {}
    used = [False] * size
    for _ in range(400):
        if taken and draw.random() < 0.5:
            begin = draw.choice(sorted(taken))
            want = taken.pop(begin)
            ranges.give(begin, want)
            used[begin : begin + want] = [False] * want
        else:
            want = draw.randrange(1, 40)
            begin = ranges.take(want)
            holes = "".join("x" if u else "." for u in used).split("x")
            assert (begin is None) is all(len(hole) < want for hole in holes)
            if begin is not None:
                assert not any(used[begin : begin + want])
                taken[begin] = want
                used[begin : begin + want] = [True] * want
        assert ranges.free == used.count(False)
        assert ranges.largest == max(map(len, "".join("x" if u else "." for u in used).split("x")))
    for begin, want in taken.items():
        ranges.give(begin, want)
    assert (ranges.free, ranges.largest) == (size, size)


def test_an_empty_slab_has_no_room():
    assert (Ranges(0).largest, Ranges(0).take(1)) == (0, None)


def test_kv_comes_back_as_it_went():
    generator = torch.Generator().manual_seed(0)
    buffers = [torch.randn((100, 2, 8), generator=generator) for _ in range(3)]
    slab = HostSlab(buffers, 40)
    slots, others = torch.tensor([7, 3, 99, 50]), torch.tensor([10, 20, 30, 40])
    before = [buffer[slots].clone() for buffer in buffers]
    slab.save(5, slots)
    for buffer in buffers:
        buffer[slots] = 0
    slab.load(5, others)
    for buffer, expected in zip(buffers, before, strict=True):
        assert torch.equal(buffer[others], expected)
        assert not buffer[slots].any()
