"""Scenario 2 (sglang#32911): what the default order gives at the mean, it must not take from the p99.

The trace is reduced; ``feather bench orders`` runs all of it. HRRN is the baseline: p99 of TTFT in scheduled tokens.
"""

from __future__ import annotations

import pytest

from feather_sglang.bench.orders_runs import WORKLOADS, Arm, capacity, jobs, serve
from feather_sglang.core.settings import Settings
from feather_sglang.simulate.profiles import PROFILES

PROFILE = PROFILES["h200"]
MIXED = next(workload for workload in WORKLOADS if workload.name == "mixed-90")


@pytest.fixture(scope="module")
def most():
    return capacity(MIXED, PROFILE, 0)


def figures(most, policy, load, requests, **options):
    trace = jobs(MIXED._replace(requests=requests), 0, load * most.requests)
    return serve(MIXED, PROFILE, Arm(policy, policy, options), trace, most.tokens)


@pytest.mark.parametrize(
    ("load", "requests", "below", "above"),
    [(0.9, 1500, 128, 0), (1.2, 1000, 128, 0), (1.2, 2500, 1 << 30, 128)],
    ids=["90%", "120%, W below 128", "120%, W above 128"],
)
def test_the_tail_is_no_worse_than_hrrns(most, load, requests, below, above):
    fcfs, hrrn, feather = (figures(most, policy, load, requests) for policy in ("fcfs", "hrrn", "feather"))
    assert above < fcfs["most_waiting"] <= below, "or HRRN is not what it is compared as"
    assert feather["ttft_tokens"]["p99"] <= hrrn["ttft_tokens"]["p99"]
    assert feather["ttft_tokens"]["mean"] < fcfs["ttft_tokens"]["mean"]
    assert feather["throughput_tok_s"] >= 0.99 * fcfs["throughput_tok_s"]


def test_it_is_why_held_is_not_the_default(most):
    hrrn = figures(most, "hrrn", 0.9, 4000)
    held = figures(most, "feather", 0.9, 4000, order="held")
    assert held["ttft_tokens"]["p99"] > hrrn["ttft_tokens"]["p99"]


def test_it_is_deterministic(most):
    assert figures(most, "feather", 1.2, 300) == figures(most, "feather", 1.2, 300)


def test_without_ageing_only_the_bound_limits_the_tail(most):
    aged, unaged = (figures(most, "feather", 1.2, 2500, aging=rate) for rate in (Settings().aging, 0.0))
    assert unaged["ttft_tokens"]["p99"] > aged["ttft_tokens"]["p99"]
    assert unaged["ttft_tokens"]["mean"] < aged["ttft_tokens"]["mean"]
