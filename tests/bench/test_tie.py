"""``feather bench tie``: what it makes of counts and times."""

from __future__ import annotations

import pytest

from feather_sglang.bench.tie_loads import CONTROL, LOADS
from feather_sglang.bench.tie_picture import draw
from feather_sglang.bench.tie_report import lines, render, unharmed
from feather_sglang.bench.tie_runs import Counted, simulated
from feather_sglang.simulate.profiles import PROFILES

LIVE = {
    "fcfs": [Counted(100, 5000, 300, seconds) for seconds in (4.0, 5.0, 6.0)],
    "feather": [Counted(100, 4000, 300, seconds) for seconds in (2.0, 5.0, 4.0)],
}
FCFS = Counted(100, 5000, 300, 12.0)


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
    rows = lines("load", LIVE, {"fcfs": FCFS, "feather": model})
    assert [row["within"] for row in rows] == [True, within]
    assert rows[1]["ratio_to_fcfs"] == {"live": 1.5, "least": 1.0, "most": 2.0, "simulated": 12.0 / model.seconds}
    shown = render(rows).splitlines()[1]
    assert f"steps 100 / {model.steps}" in shown
    assert shown.endswith("OFF") is not within


def test_runs_that_differ_are_not_within() -> None:
    live = LIVE | {"fcfs": [*LIVE["fcfs"][:2], Counted(101, 5000, 300, 6.0)]}
    assert not lines("load", live, dict.fromkeys(live, FCFS))[0]["within"]


@pytest.mark.parametrize(("steps", "computed", "good"), [(100, 5000, True), (101, 5000, False), (99, 5001, False)])
def test_the_negative_control(steps: int, computed: int, good: bool) -> None:
    live = {"fcfs": LIVE["fcfs"], "feather": [Counted(steps, computed, 300, 5.0)] * 3}
    rows = lines(CONTROL, live, dict.fromkeys(live, FCFS))
    assert unharmed(rows) is good
    assert [row["within"] for row in rows] == [None, None]


def test_the_picture(tmp_path) -> None:
    rows = lines("load", LIVE, dict.fromkeys(LIVE, FCFS))
    draw({"rows": rows}, [tmp_path / "tie.png"], subtitle="a machine")
    assert (tmp_path / "tie.png").read_bytes().startswith(b"\x89PNG")


def test_the_loads_are_what_they_say() -> None:
    counts = {name: simulated("feather", load(), PROFILES["cpu"]) for name, load in LOADS.items()}
    assert counts["families"].computed == 6 * 512 + 30 * 40
    assert counts["conversations"].computed == 4 * (4 * 192 + 4 * 24)
    assert counts["strangers"].computed == sum(len(prompt) for prompt, _ in LOADS["strangers"]())
    recorded = LOADS[CONTROL]()
    assert len(recorded) == 64
    assert 800 < max(len(prompt) + new for prompt, new in recorded) <= 1000
    assert counts[CONTROL].computed > 0.95 * sum(len(prompt) for prompt, _ in recorded)
