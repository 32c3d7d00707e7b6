"""What ``feather bench tie`` makes of counts and times: the rows of its JSON, and what it prints."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from feather_sglang.bench.tie_loads import CONTROL
from feather_sglang.bench.tie_runs import Counted

POLICIES = ("fcfs", "feather")
"""The baseline first."""
COUNTS, RATIO = 0.02, 0.15
"""How far the simulator may be off: in counts, and in the ratio of throughput to the baseline's."""


def lines(name: str, runs: Mapping[str, Sequence[Counted]], modelled: Mapping[str, Counted]) -> list[dict[str, Any]]:
    """A row for each policy on one load; ``within`` is None on the control.

    :param runs: by policy, those of each pair.
    """
    base = runs[POLICIES[0]]
    found = []
    for policy in POLICIES:
        real, model = runs[policy], modelled[policy]
        pairs = [one.seconds / other.seconds for one, other in zip(base, real, strict=True)]
        ratio, predicted = statistics.median(pairs), modelled[POLICIES[0]].seconds / model.seconds
        same = len({(one.steps, one.computed) for one in real}) == 1
        off = [model.steps / real[0].steps, model.computed / real[0].computed]
        within = same and all(abs(each - 1) <= COUNTS for each in off) and abs(predicted / ratio - 1) <= RATIO
        found.append(
            {
                "load": name,
                "policy": policy,
                "steps": {"live": real[0].steps, "simulated": model.steps},
                "computed": {"live": real[0].computed, "simulated": model.computed},
                "ratio_to_fcfs": {"live": ratio, "least": min(pairs), "most": max(pairs), "simulated": predicted},
                "cpu_seconds": [one.seconds for one in real],
                "simulated_seconds": model.seconds,
                "within": None if name == CONTROL else within,
            }
        )
    return found


def unharmed(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether on the control Feather ran at most as many steps and computed at most as many tokens as the baseline."""
    base, ours = ({row["policy"]: row for row in rows if row["load"] == CONTROL}[policy] for policy in POLICIES)
    return all(ours[count]["live"] <= base[count]["live"] for count in ("steps", "computed"))


def render(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line a row: live / simulated, and the spread of the live ratio."""
    said = []
    for row in rows:
        steps, computed, ratio = row["steps"], row["computed"], row["ratio_to_fcfs"]
        off = "  OFF" if row["within"] is False else ""
        said.append(
            f"{row['load']:<14} {row['policy']:<8} steps {steps['live']} / {steps['simulated']}, computed "
            f"{computed['live']:,} / {computed['simulated']:,}, ratio to fcfs {ratio['live']:.2f} "
            f"({ratio['least']:.2f}-{ratio['most']:.2f}) / {ratio['simulated']:.2f}{off}"
        )
    return "\n".join(said)
