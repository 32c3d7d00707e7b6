"""The overhead bench: what it computes from times, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from feather_sglang.bench import overhead
from feather_sglang.bench.overhead_index import Ours
from feather_sglang.bench.overhead_measure import Cell, alone
from feather_sglang.bench.overhead_picture import draw
from feather_sglang.bench.overhead_prompts import FAMILIES, Prompts
from feather_sglang.bench.overhead_report import LPM, SHIPPED, report
from feather_sglang.bench.overhead_table import render
from feather_sglang.bench.results import Circumstances
from feather_sglang.cli.errors import UsageError

CIRCUMSTANCES = Circumstances("feather bench overhead", {"cpu": "any"}, {"sglang": "0"}, "any")


def cell(tokens=10_000, waiting=1_000, **times):
    times = {"form": 20.0, "form cold": 90.0, "undo": 10.0, "best": 0.1, "insert": 5.0} | times
    return Cell(tokens, waiting, 800.0, 1.0, {name: [time] * 3 for name, time in times.items()})


def compared(**changes):
    return cell(**{"matches": 1_000.0, LPM: 8_000.0, SHIPPED: 3.0} | changes)


def test_keys_and_ratios():
    result = report([compared(), cell(tokens=1_000, waiting=100_000, form=60.0)], 0.8, CIRCUMSTANCES)
    key = "T=10000,W=1000"
    assert result["schema"] == {"name": "feather bench overhead", "version": 1}
    assert result["ratios"]["lpm_pass_over_form100"] == {key: 400.0}
    assert result["ratios"]["whole_step"] == {key: 9_000 / 1_020}
    assert result["ratios"]["whole_step_ceiling"] == {key: 9.0}
    assert result["hash_over_read_bandwidth"] == 0.8
    assert result["insert_us"] == {"T=10000": 5.0, "T=1000": 5.0}
    assert result["form100_us"] == {key: 20.0, "T=1000,W=100000": 60.0}
    assert result["memory_bytes_per_request"] == {"T=10000": 800.0, "T=1000": 800.0}
    assert {"command", "machine", "versions", "rows"} <= result.keys()


def test_the_table_says_what_the_ratios_do_not_show():
    text = render(report([compared()], 0.8, CIRCUMSTANCES))
    assert "first come, first served, at 3.0 us a pass" in text.replace("\n", " ")
    assert "400" in text
    assert max(map(len, text.splitlines())) <= 120


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    result = report([compared(waiting=w) for w in (128, 1_000)], 0.8, CIRCUMSTANCES)
    paths = [tmp_path / "over.svg", tmp_path / "over.png"]
    draw(result, paths, subtitle="any machine")
    assert all(path.stat().st_size > 1_000 for path in paths)


def test_a_debug_build_is_refused(monkeypatch):
    monkeypatch.setattr(overhead, "build_info", lambda: {"profile": "debug"})
    with pytest.raises(UsageError, match="debug build"):
        overhead.main(["--quick"])


def test_a_file_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UsageError, match="there is no folder"):
        overhead.main(["--quick", "--json", str(tmp_path / "none" / "x.json")])


def test_prompts_share_their_families_prefixes():
    prompts = Prompts(1_000, 40)
    prefixes = [list(prefix) for prefix in prompts.prefixes()]
    assert len(prefixes) == FAMILIES
    seen = [next(i for i, p in enumerate(prefixes) if list(prompt[: len(p)]) == p) for prompt in prompts]
    assert sorted(seen) == sorted(list(range(FAMILIES)) * 5)


def test_our_side_names_a_whole_batch_and_takes_it_back():
    prompts = Prompts(1_000, 200)
    ours = Ours(prompts.prefixes(), prompts)
    for _ in range(2):
        assert ours.form(100) == 100
        ours.undo()
    measured = alone(1_000, 150)
    assert measured.median("form") > 0
    assert measured.bytes_per_request > 0


ONE_CELL = """
from feather_sglang.bench.overhead_measure import compare
from feather_sglang.bench.overhead_upstream import configure
configure()
cell = compare(1_000, 130, ["rust", "python"])
print(json.dumps({name: cell.median(name) for name in cell.times}))
"""


@pytest.mark.slow
def test_both_sides_in_one_process():
    """In a process of its own: it publishes a configuration of SGLang's."""
    done = subprocess.run([sys.executable, "-c", f"import json{ONE_CELL}"], capture_output=True, text=True, check=True)
    times = json.loads(done.stdout.splitlines()[-1])
    names = {LPM, SHIPPED, "lpm (python tree)", "dfs-weight (rust tree)", "hrrn (rust tree)", "fcfs (rust tree)"}
    assert names <= times.keys()
    assert times[SHIPPED] < times[LPM]


PASSES = """
import json
from feather_sglang.bench import overhead_pass
overhead_pass.WAITING, overhead_pass.RUNNING, overhead_pass.ADMITTED = 40, 8, (1, 3)
print(json.dumps(overhead_pass.measure(4)))
"""


@pytest.mark.slow
def test_what_is_timed_is_a_policy_that_works():
    """Every kind of pass is seen; a policy that failed under the clocks would sort no rows, and be refused."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PASSES], capture_output=True, text=True, check=True)
    passes = json.loads(done.stdout.splitlines()[-1])
    admitting = {f"W=40,k={k}{what}": 4 for k in (1, 3) for what in ("", ",index", ",whole")}
    assert {what: us["passes"] for what, us in passes.items()} == {"W=40,k=0": 16, "W=40,sort": 8} | admitting
    for k in ("W=40,k=1", "W=40,k=3"):
        index, ours, whole = (passes[f"{k}{what}"]["median"] for what in (",index", "", ",whole"))
        assert 0 < index < ours < whole
