"""The simulator against the real Scheduler, by exact counts; and traffic that shares nothing, live."""

from __future__ import annotations

import pytest

from feather_sglang.bench.tie_loads import CONTROL, LOADS
from feather_sglang.bench.tie_report import COUNTS, POLICIES
from feather_sglang.bench.tie_runs import MACHINE, live, simulated
from feather_sglang.simulate.profiles import PROFILES


@pytest.mark.slow
def test_the_simulator_counts_as_the_scheduler_does(start_alone):
    """And on requests that share next to nothing, Feather runs no step and computes no token more than fcfs."""
    scheduler = start_alone(**MACHINE).scheduler
    counts, off = {}, []
    for name, load in LOADS.items():
        for policy in POLICIES:
            real, model = live(scheduler, policy, load()), simulated(policy, load(), PROFILES["cpu"])
            counts[name, policy] = real
            if name != CONTROL and (
                abs(model.steps / real.steps - 1) > COUNTS or abs(model.computed / real.computed - 1) > COUNTS
            ):
                off.append((name, policy, real, model))
    assert off == []
    fcfs, feather = (counts[CONTROL, policy] for policy in POLICIES)
    assert feather.steps <= fcfs.steps
    assert feather.computed <= fcfs.computed
