"""sglang#27221, #32454: ranks with clocks and hash seeds of their own make the same decisions in every pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKEW = 0.05


def two_ranks(decisions: int, fault: str) -> list[tuple[int, str]]:
    """Exit status and last line of the leader and of the follower (``tests/harness/rank.py``)."""

    def start(role: str, seed: str, skew: float, **pipes: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "ignore", "-m", "tests.harness.rank", role, str(decisions), str(skew), fault]
        env = os.environ | {"PYTHONHASHSEED": seed}
        return subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, **pipes)  # type: ignore[call-overload, no-any-return]

    leader = start("leader", "1", SKEW, stdout=subprocess.PIPE)
    follower = start("follower", "2", -SKEW, stdin=leader.stdout)
    assert leader.stdout is not None
    leader.stdout.close()  # so that the leader ends with the follower
    ends = [(each.communicate(timeout=600)[1], each.returncode) for each in (follower, leader)]
    return [(status, said.decode().strip().splitlines()[-1]) for said, status in reversed(ends)]


@pytest.mark.slow
def test_ranks_decide_alike_over_a_hundred_thousand_admissions():
    (leads, leader), (follows, follower) = two_ranks(100_000, "none")
    assert (leads, follows) == (0, 0)
    assert leader == follower
    admitted, _, passes, ticks, bounds, _ = map(int, leader.split())
    assert admitted >= 100_000
    assert passes > ticks > 1000
    assert bounds > 0, "the bound on waiting follows the leader's clock"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["clock", "hash"])
def test_a_decision_that_differs_by_rank_is_noticed(fault):
    """One clock read, or one ``hash`` of a string, in a decision."""
    _, (follows, said) = two_ranks(3000, fault)
    assert follows != 0
    assert "this rank never had" in said
