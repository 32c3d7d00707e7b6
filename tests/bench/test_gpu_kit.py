"""The kit for a GPU, as far as a CPU goes: its calls, its arithmetic, and what it makes of times and counters."""

from __future__ import annotations

import json

import pytest
import torch

from bench.gpu import counters, dry, results
from bench.gpu.__main__ import main
from bench.gpu.cells import AUTO, CASCADE, EIGHT, PLAIN, Cell, Layout, cells
from bench.gpu.kernels import planned
from bench.gpu.reference import MOST_ERROR
from bench.gpu.rehearsal import SMALL, plan_only, small_error


@pytest.mark.slow
def test_the_dry_run_plans_every_row(capsys):
    assert main(["--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert all(cell.name in shown for cell in cells())
    assert "REFUSED" not in shown
    assert "WRONG" not in shown


@pytest.mark.parametrize("cell", SMALL, ids=lambda cell: cell.name)
def test_a_small_batch_is_attention_row_by_row(cell):
    classes, _ = dry.classes()
    assert small_error(cell, classes) < MOST_ERROR


def test_rows_that_read_other_pages_are_seen(monkeypatch):
    """The reference follows the layout, the calls the arrays: a fault between the two is an error."""
    classes, _ = dry.classes()
    right = Layout.slots
    monkeypatch.setattr(Layout, "slots", lambda layout, row: right(layout, row) - 1)
    assert small_error(SMALL[0], classes) > MOST_ERROR


def test_what_flashinfer_would_not_take_is_refused(monkeypatch):
    classes, against = dry.classes()
    if "not installed" in against:
        pytest.skip("FlashInfer is not installed")

    def renamed(*args, **named):
        named["sm_scales"] = named.pop("sm_scale")
        return plan(*args, **named)

    plan = classes.decode.plan
    monkeypatch.setattr(classes.decode, "plan", renamed)
    with pytest.raises(dry.Refused, match="sm_scales"):
        plan_only(SMALL[0], classes)


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [(1, 7, "do not fall|end at"), (2, None, "end at"), (3, 17, "hold 1 to 16"), (3, 0, "hold 1 to 16")],
)
def test_arrays_that_do_not_fit_together_are_refused(at, value, why):
    rows, pages, slots, last = (
        torch.tensor(each, dtype=torch.int32) for each in ([0, 1, 2], [0, 2, 4], [1, 2, 3, 4], [16, 5])
    )
    level = [rows, pages, slots, last]
    dry._check(tuple(level), 16, 2)
    if value is None:
        level[at] = level[at][:-1]
    else:
        level[at][-1] = value
    with pytest.raises(dry.Refused, match=why):
        dry._check(tuple(level), 16, 2)


def test_layout_shares_what_the_cell_says():
    cell = Cell(PLAIN, (3, 3), prefix=32, page=16, interleaved=True)
    layout = Layout.of(cell, "cpu")
    slots = [set(layout.slots(row).tolist()) for row in range(6)]
    assert [len(each) for each in slots] == [cell.length] * 6
    assert len(slots[0] & slots[2]) == 32
    assert not slots[0] & slots[1]
    assert len(set.union(*slots)) == cell.distinct_kv
    assert max(set.union(*slots)) < cell.pages * 16
    assert min(set.union(*slots)) >= 16
    with pytest.raises(ValueError, match="multiple of the page"):
        Layout.of(cell._replace(prefix=40), "cpu")


def test_the_cascade_reads_a_prefix_once():
    classes, _ = dry.classes()
    cell = Cell(CASCADE, EIGHT, prefix=1024)
    wrappers = []
    made = classes.cascade
    classes = classes._replace(cascade=lambda *args, **named: wrappers.append(made(*args, **named)) or wrappers[-1])
    planned(cell, Layout.of(cell, "cpu"), classes, torch.empty(1))
    assert sum(len(level[2]) for level in wrappers[0]._levels) == cell.distinct_kv


def row(kernel, families, seconds, interleaved=False):
    cell = Cell(kernel, families, 4096, interleaved=interleaved)
    return results.row_of(cell, 1e-3, [seconds * 0.9, seconds, seconds * 1.1], 4, 1e-3)


def test_ratios_are_throughputs_of_the_rows_that_are_there(tmp_path):
    rows = [row(PLAIN, (100,), 100e-6), row(PLAIN, EIGHT, 1600e-6, True), row(PLAIN, EIGHT, 800e-6)]
    found = results.ratios(rows, {100: 100e-6, 800: 200e-6})["prefix=4096,page=1"]
    assert found["8 x 100 homogeneous / 800 interleaved"] == pytest.approx(2)
    assert found["8 x 100 homogeneous / 800 sorted"] == pytest.approx(1)
    assert found["8 x 100 homogeneous / 800 sorted, matrix products included"] == pytest.approx(1000 / 8 / 200)
    assert "8 x 100 homogeneous / 800 cascade" not in found
    report = {
        "title": "t", "rows": rows, "ratios": {"p": found}, "skipped": {"x": "the budget was spent"}, "counters": "none"
    }  # fmt: skip
    results.write(report, tmp_path)
    assert json.loads((tmp_path / "gpu.json").read_text())["rows"][0]["step_s"] == pytest.approx(3.2e-3)
    assert "not measured: x (the budget was spent)" in (tmp_path / "gpu.txt").read_text()


NCU = f"""==PROF== Profiling "a": 0%
"ID","Kernel Name",{",".join(f'"{metric}"' for metric in counters.METRICS.values())}
"","","byte","byte","sector","sector"
"0","decode","1,000","10","100","40"
"1","merge","500","10","100","60"
"2","spin_kernel(long)","1","1","1","1"
"3","decode","70","0","10","1"
"4","spin_kernel(long)","1","1","1","1"
"""


def test_counters_are_summed_over_the_kernels_of_a_cell():
    first, second = counters.parsed(NCU)
    assert first == {"dram_read_bytes": 1500, "dram_written_bytes": 20, "l2_hit_rate": 0.5}
    assert second["l2_hit_rate"] == 0.1


@pytest.mark.parametrize("output", ["==ERROR== ERR_NVGPUCTRPERM", NCU.replace('"40"', '"n/a"')])
def test_refused_counters_say_so(output):
    with pytest.raises(counters.Unavailable):
        counters.parsed(output)


def test_no_gpu_and_no_ncu_are_said(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(counters.Unavailable, match="not on the PATH"):
        counters.read([], 1.0)
    if not torch.cuda.is_available():
        assert main([]) == 2
        assert "--dry-run" in capsys.readouterr().err


def test_the_most_important_rows_come_first():
    first = cells()[:4]
    assert [(cell.kernel, cell.rows) for cell in first] == [(PLAIN, 100), (PLAIN, 800), (PLAIN, 800), (CASCADE, 800)]
    assert len(set(cells())) == len(cells())
    assert {cell.page for cell in cells()} == {1, 16}
    assert {cell.kernel for cell in cells()} == {PLAIN, AUTO, CASCADE}
