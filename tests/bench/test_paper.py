"""``feather bench paper``: every experiment in reduced form, and verdicts that can come out both ways."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from feather_sglang.bench.paper import batches, measured, sweeps
from feather_sglang.bench.paper.arms import FCFS, FEATHER, GPUS, PAPER, Arm, serve
from feather_sglang.bench.paper.batches import batch_of, eight_hundred
from feather_sglang.bench.paper.main import EXPERIMENTS
from feather_sglang.bench.paper.report import render, summary
from feather_sglang.bench.paper.verdict import FAILS, HOLDS, PARTLY, Part, verdict
from feather_sglang.cli import main
from feather_sglang.cli.errors import UsageError

MODELLED = [each for each in EXPERIMENTS.values() if not each.alone]
MEASURED = [each for each in EXPERIMENTS.values() if each.alone]

ONE_ROW = """
import json, sys
from feather_sglang.bench.paper.main import EXPERIMENTS
out, sys.stdout = sys.stdout, sys.stderr
experiment = EXPERIMENTS[sys.argv[1]]
json.dump([experiment.measure(next(iter(experiment.work(True))))], out)
"""
"""In a process of its own: a Scheduler stays for as long as its process."""


@pytest.mark.slow
@pytest.mark.parametrize("experiment", MODELLED, ids=lambda each: each.name)
def test_a_modelled_experiment_in_reduced_form(experiment):
    rows = [experiment.measure(work) for work in [*experiment.work(True)][-1:]]
    found = summary(experiment, rows)
    shown = render(experiment.name, found, rows)
    assert "modelled" in shown
    assert f"VERDICT: {found['verdict']}" in shown
    assert {work[0] for work in experiment.work(False)} == set(GPUS)
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.slow
@pytest.mark.parametrize("experiment", MEASURED, ids=lambda each: each.name)
def test_a_measured_experiment_in_reduced_form(experiment):
    rows = json.loads(subprocess.run([sys.executable, "-c", ONE_ROW, experiment.name], stdout=PIPE, check=True).stdout)
    found = summary(experiment, rows)
    assert "measured" in render(experiment.name, found, rows)
    assert all(ratio > 0 for part in (*found["asked"], *found["beside"]) for ratio in part["ratios"])


def changed(row: dict[str, Any], factor: float) -> dict[str, Any]:
    """Every ratio times a factor."""
    ratios = ("ratio", "earlier", "foreign ratio", "lpm / step", "lpm as shipped / step", "index / step")
    return {name: value * factor if name.startswith(ratios) else value for name, value in row.items()}


def row_of(experiment: Any) -> dict[str, Any]:
    """A row with the names that its verdict reads, each ratio 1."""
    gpus = {f"{name} / step, {gpu}": 1.0 for name in ("lpm", "lpm as shipped", "index") for gpu in GPUS}
    reads = {f"ratio, {reads}": 1.0 for reads in batches.READS}
    arms = {f"{figure}, {arm.name}": 1.0 for figure in ("ratio", "earlier") for arm in (*sweeps.PAPERS, *sweeps.OURS)}
    cpu = {f"ratio, {each}": 1.0 for each in ("mixed, plain", "mixed sorted, plain", "mixed, sharing")}
    foreign = {f"foreign ratio, {kernel}": 1.0 for kernel in ("plain", "sharing")}
    return gpus | reads | arms | cpu | foreign


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda each: each.name)
def test_a_verdict_comes_out_all_ways(experiment):
    row = row_of(experiment)
    good, bad = changed(row, 100), changed(row, 0.01)
    assert experiment.verdict([good, good]).outcome == HOLDS
    assert experiment.verdict([bad, bad]).outcome == FAILS
    assert experiment.verdict([good, bad]).outcome == PARTLY


def test_what_stands_beside_a_claim_does_not_decide_it():
    reached, missed = Part("a", [2.0], 2.0), Part("b", [1.9], 2.0)
    assert verdict([reached], [missed]).outcome == HOLDS
    assert verdict([missed], [reached]).outcome == FAILS
    assert "(beside it) b" in verdict([reached], [missed]).lines()[1]


def test_eight_batches_of_a_hundred_are_of_one_family_each():
    """What the experiment means by small batches: the order serves a family until its queue is empty."""
    jobs = eight_hundred(1024, output=20)
    served = serve(FEATHER, "h200", jobs, rows=100)
    assert served.rows > 90
    shuffled = serve(Arm("mixed", "fcfs", "sharing"), "h200", jobs, rows=100)
    assert served.tokens_per_second > 0.9 * shuffled.tokens_per_second


def test_a_foreign_row_lengthens_what_is_read():
    alone, mixed = batch_of((100,), 4096), batch_of((99, 1), 4096)
    assert alone.rows == mixed.rows == 100
    assert alone.total_kv == mixed.total_kv
    assert mixed.distinct_kv - alone.distinct_kv == 4096
    assert mixed.reuse_distance > alone.reuse_distance


def test_an_order_that_opened_families_at_once_would_be_seen():
    """The sweep tells policies apart: what FCFS computes again, the paper's order does not."""
    work = ("rtx6000ada", 16, 10240, 20, "fixed", 120)
    row = sweeps.compared(work)
    assert row["ratio, paper, static gate"] > 1
    jobs = sweeps._jobs(sweeps.families(16, 10240, 20, "fixed"), 120)
    assert (
        serve(Arm("p", "feather", "as admitted", PAPER), "rtx6000ada", jobs).computed
        < serve(FCFS, "rtx6000ada", jobs).computed
    )


def test_the_command(tmp_path, capsys):
    files = ["--json", str(tmp_path / "p.json"), "--png", str(tmp_path / "p.png")]
    assert main.main(["bench", "paper", "foreign", "no-sharing", "--quick", "--workers", "1", *files]) == 0
    report = json.loads((tmp_path / "p.json").read_text())
    assert report["schema"] == {"name": "feather bench paper", "version": 1}
    assert report["experiments"].keys() == {"foreign", "no-sharing"}
    assert {"command", "machine", "versions", "rows", "date"} <= report.keys()
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.count("VERDICT") == 2


def test_the_document_says_what_the_results_say():
    folder = Path(__file__).parents[2] / "bench"
    document = (folder / "README.md").read_text()
    reports = [json.loads(path.read_text()) for path in (folder / "results").glob("paper-*.json")]
    found = [(name, each, report) for report in reports for name, each in report["experiments"].items()]
    assert {name for name, *_ in found} >= {each.name for each in MODELLED}
    for name, each, report in found:
        (line,) = (line for line in document.splitlines() if f"`feather bench paper {name}`" in line)
        assert line.startswith(f"| {each['claim']} |")
        assert f"**{each['verdict']}**" in line
        assert report["date"] in line
        assert report["machine"]["cpu"] in line
        rows = [row for row in report["rows"] if row["experiment"] == name]
        assert EXPERIMENTS[name].verdict(rows).outcome == each["verdict"]
        assert EXPERIMENTS[name].claim == each["claim"]


def test_a_name_that_is_not_there():
    from feather_sglang.bench.paper.main import main as paper

    with pytest.raises(UsageError, match="no experiment 'grups'; expected one of homogeneous"):
        paper(["grups"])


def test_a_foreign_row_takes_slots_of_its_own():
    from feather_sglang.bench.attention_step import TAIL, Cell

    assert Cell(measured.SMALL, 64, 1, "sorted", foreign=1).slots == 1 + 2 * 64 + measured.SMALL * TAIL
