"""``feather bench gates``: what its tables say of runs, and the sweep of a gate's constants."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from feather_sglang.bench import gates_sweep
from feather_sglang.bench.gates import main
from feather_sglang.bench.gates_runs import SURFACES
from feather_sglang.bench.results import Circumstances
from feather_sglang.cli.errors import UsageError
from feather_sglang.core.gates.q import Q


def test_a_sweep_tries_each_with_each_and_says_which_are_in_use(monkeypatch):
    monkeypatch.setattr(gates_sweep, "SURFACES", [s for s in SURFACES if s.name == "roofline-sorted"])
    monkeypatch.setattr(gates_sweep, "GRIDS", {"q": {"EPSILON": (1.0, Q.EPSILON), "DECAY": (1e9, Q.DECAY)}})
    circumstances = Circumstances(command="", machine={}, versions={}, workload="")
    with ThreadPoolExecutor(1) as pool:
        result = gates_sweep.sweep("q", 1, 700, pool, circumstances)
    rows = result["rows"]
    assert len(rows) == 4
    assert rows == sorted(rows, key=lambda row: -row["mean"])
    assert rows[0]["mean"] > rows[-1]["mean"] > 0.5
    (used,) = [row for row in rows if row["in_use"]]
    assert used["constants"] == {"EPSILON": Q.EPSILON, "DECAY": Q.DECAY}
    assert used["worst"] == used["mean"] == used["rate_to_never"]["roofline-sorted"]
    assert "<- in use" in gates_sweep.render(result, most=1)


def test_the_constants_in_use_are_in_the_grid():
    for gate, grid in gates_sweep.GRIDS.items():
        made = gates_sweep.make_gate(gate)
        assert all(getattr(made, name) in values for name, values in grid.items())


def test_a_sweep_draws_no_picture(tmp_path):
    with pytest.raises(UsageError, match="draws no picture"):
        main(["--sweep", "q", "--svg", str(tmp_path / "x.svg")])
