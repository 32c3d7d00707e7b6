"""``feather bench tie``: what it makes of counts and times."""

from __future__ import annotations

import pytest

from feather_sglang.bench.tie import render, row
from feather_sglang.bench.tie_loads import LOADS
from feather_sglang.bench.tie_runs import Counted, simulated
from feather_sglang.simulate.profiles import PROFILES

LIVE = {
    "fcfs": [Counted(100, 5000, 300, seconds) for seconds in (4.0, 5.0, 6.0)],
    "feather": [Counted(100, 4000, 300, seconds) for seconds in (2.0, 5.0, 4.0)],
}


@pytest.mark.parametrize(
    ("model", "within"),
    [
        (Counted(101, 3960, 300, 8.0), True),
        (Counted(103, 4000, 300, 8.0), False),
        (Counted(100, 4100, 300, 8.0), False),
        (Counted(100, 4000, 300, 6.5), False),
    ],
)
def test_what_is_within(model: Counted, within: bool) -> None:
    lines = row("load", LIVE, {"fcfs": Counted(100, 5000, 300, 12.0), "feather": model})
    assert [line["within"] for line in lines] == [True, within]
    assert lines[1]["ratio_to_fcfs"] == {"live": 1.5, "low": 1.0, "high": 2.0, "simulated": 12.0 / model.seconds}
    shown = render(lines).splitlines()[1]
    assert f"steps 100 / {model.steps}" in shown
    assert shown.endswith("OFF") is not within


def test_runs_that_differ_are_not_within() -> None:
    live = LIVE | {"fcfs": [*LIVE["fcfs"][:2], Counted(101, 5000, 300, 6.0)]}
    lines = row("load", live, {policy: Counted(100, 5000, 300, 1.0) for policy in live})
    assert not lines[0]["within"]


def test_the_loads_are_what_they_say() -> None:
    counts = {name: simulated("feather", load(), PROFILES["cpu"]) for name, load in LOADS.items()}
    assert counts["families"].computed == 6 * 512 + 30 * 40
    assert counts["conversations"].computed == 4 * (4 * 192 + 4 * 24)
    assert counts["strangers"].computed == sum(len(prompt) for prompt, _ in LOADS["strangers"]())
