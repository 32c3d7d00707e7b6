"""Static batches from bins of equal output length: theory, its closed form, and the core that serves."""

from __future__ import annotations

import random

import pytest

from feather_sglang.simulate.bins import of_sample, simulated, uniform

LOW, HIGH, BATCH = 16, 112, 16


@pytest.mark.parametrize("bins", [1, 2, 4, 8, 32])
def test_the_closed_form(bins):
    continuous = [LOW - 0.5 + (HIGH - LOW + 1) * (i + 0.5) / 6400 for i in range(6400)]
    assert uniform(LOW - 0.5, HIGH + 0.5, bins, BATCH) == pytest.approx(of_sample(continuous, bins, BATCH), rel=1e-4)


def test_limits():
    assert uniform(10, 10, 1, 8) == 8 / 10
    assert uniform(0, 100, 10**9, 8) == pytest.approx(2 * 8 / 100)
    assert of_sample([7, 7, 7], 2, 4) == pytest.approx(4 / 7)


@pytest.mark.parametrize("bins", [1, 4])
def test_the_core_serves_what_theory_says(bins):
    """2,000 requests; ``feather bench length`` takes more, and comes nearer."""
    draw = random.Random(bins)
    outputs = [draw.randint(LOW, HIGH) for _ in range(2_000)]
    served = simulated(outputs, bins, BATCH)
    assert sum(rows for rows, _ in served.batches) == 2_000
    assert served.throughput == pytest.approx(uniform(LOW - 0.5, HIGH + 0.5, bins, BATCH), rel=0.02)
