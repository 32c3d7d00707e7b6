"""``feather bench attention``: what its cells come to. The numbers here are made up."""

from __future__ import annotations

import pytest

from feather_sglang.bench import attention
from feather_sglang.bench.attention_live import ARMS, ratios
from feather_sglang.bench.attention_picture import draw
from feather_sglang.bench.results import Circumstances
from feather_sglang.cli.errors import UsageError

CIRCUMSTANCES = Circumstances("feather bench attention", {"load": 0.0}, {}, "steps")


def row(batch, prefix, families, ratio, on=1.0):
    planning = {"planning_share": 0.001, "planning_share_of_new_rows": 0.002}
    return {"batch": batch, "prefix": prefix, "families": families, "order": "sorted", "ratio": ratio, "on_s": on} | {
        "torch_native_s": 8.0 * on,
        **planning,
    }


def test_keys():
    rows = [row(8, 2048, 1, 2.0), row(32, 4096, 1, 4.5), row(4, 4096, 1, 9.0), row(32, 1024, 1, 9.0)]
    rows += [row(32, 4096, 8, 2.0, on=1.5), row(8, 2048, 8, 1.0)]
    report = attention.report_of(rows, CIRCUMSTANCES)
    assert report["sharing_gain"] == pytest.approx(3.0)
    assert report["sharing_gain_8_families"] == pytest.approx(2.0)
    assert report["no_sharing_ratio"] == pytest.approx(1.0)
    assert report["het_over_hom"] == pytest.approx(1.5)
    assert report["over_torch_native"] == pytest.approx(8.0)
    assert report["schema"] == {"name": "feather bench attention", "version": 1}
    assert "3.00x" in attention.summary(report)
    assert attention.report_of(rows[-1:], CIRCUMSTANCES)["sharing_gain"] is None


@pytest.mark.parametrize("quick", [True, False])
def test_cells(quick):
    """Prompts fit the context of the embedded model, and every key has cells."""
    cells = attention.cells(quick)
    assert len(set(cells)) == len(cells)
    assert max(prefix for _, prefix, _, _ in cells) <= 7168
    rows = [row(batch, prefix, families, 1.0) for batch, prefix, families, _ in cells]
    assert all(value is not None for value in attention.report_of(rows, CIRCUMSTANCES).values())


@pytest.mark.parametrize("quick", [True, False])
def test_the_picture(quick, tmp_path):
    rows = [row(batch, prefix, families, 1.5) | {"off_s": 1.5} for batch, prefix, families, _ in attention.cells(quick)]
    draw({"rows": rows}, [tmp_path / "a.png"], subtitle="a machine")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_live_ratios():
    rows = [{"arm": arm, "decode": decode, "whole": 1.0} for arm, decode in zip(ARMS, (60.0, 30.0, 10.0), strict=True)]
    assert ratios(rows)["decode_over_fcfs"] == 2.0
    assert ratios(rows)["decode_over_torch_native"] == 6.0


def test_servers_are_not_drawn():
    with pytest.raises(UsageError, match="--live draws no picture"):
        attention.main(["--live", "--png", "a.png"])


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="there is no folder"):
        attention.main(["--json", str(tmp_path / "nowhere" / "result.json")])
