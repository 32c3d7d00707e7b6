"""A short soak; ``make soak`` runs as many requests as one likes."""

from __future__ import annotations

import pytest

from tests.harness import pool
from tests.soak.chaos import Episode


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_an_episode_of_chaos(seed):
    try:
        counts = Episode(seed, requests=120).run()
    finally:
        pool.discard()
    assert counts["sent"] >= 120
    assert counts["episodes"] == 1
