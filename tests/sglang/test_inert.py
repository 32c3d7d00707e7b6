"""With another policy, and where ordering has no meaning, the plugin changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.scheduler import Scheduler

from feather_sglang.sglang import compat
from feather_sglang.sglang.queue import Replaced
from feather_sglang.sglang.start import without_meaning
from tests.harness import workload
from tests.harness.prompts import Tokens, interleaved


@pytest.mark.slow
def test_under_fcfs_batches_are_those_of_a_process_without_the_plugin(start):
    assert compat.check_hooks() == []
    harness = start(schedule_policy="fcfs", **workload.SETTINGS)
    here = workload.run(harness)
    assert "feather" not in harness.scheduler.__dict__
    assert "feather" not in harness.state()
    assert type(harness.scheduler.waiting_queue) is list

    # SGLang's own whitelist of plugins, which holds for platforms as well.
    child = subprocess.run(
        [sys.executable, "-m", "tests.harness.workload", "fcfs"],
        env=os.environ | {"SGLANG_PLUGINS": "feather_cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    without = json.loads(child.stdout.splitlines()[-1])
    assert not without["adapter"]
    assert len(here) >= 30
    assert here == without["batches"]


def test_without_a_radix_cache_it_stands_back_and_says_so(start, caplog):
    harness = start(disable_radix_cache=True)
    assert "feather" not in harness.scheduler.__dict__
    messages = [r.getMessage() for r in caplog.records if r.getMessage().startswith("feather:")]
    assert messages == [
        "feather: first come, first served, because the radix cache is off, so nothing is shared",
    ]
    state = harness.state()["feather"]
    assert (state["policy"], state["reason"]) == ("fcfs", "the radix cache is off, so nothing is shared")
    rids = harness.send_all(interleaved(Tokens().families(3, 3, 64, 16)))
    assert harness.run().admitted == rids


def test_where_else_ordering_has_no_meaning(start, monkeypatch):
    scheduler = start().scheduler
    assert without_meaning(scheduler) is None
    monkeypatch.setattr(scheduler, "disaggregation_mode", DisaggregationMode.DECODE)
    assert "prefilled already" in without_meaning(scheduler)
    monkeypatch.setattr(scheduler, "disaggregation_mode", DisaggregationMode.PREFILL)
    assert without_meaning(scheduler) is None
    monkeypatch.setattr(scheduler, "dllm_config", object())
    assert "diffusion" in without_meaning(scheduler)


@pytest.mark.parametrize("variable", ["1", "true"])
def test_one_variable_rolls_a_fleet_back(start_alone, monkeypatch, variable):
    monkeypatch.setenv("FEATHER_DISABLE", variable)
    harness = start_alone()
    assert harness.state()["feather"]["reason"] == "FEATHER_DISABLE is set"
    rids = harness.send_all(interleaved(Tokens().families(3, 3, 64, 16)))
    assert harness.run().admitted == rids


@pytest.mark.slow
def test_a_scheduler_that_another_policy_runs_keeps_a_plain_queue_beside_one_that_feather_ran(start):
    start()
    assert isinstance(Scheduler.__dict__["waiting_queue"], Replaced)
    harness = start(schedule_policy="fcfs")
    harness.send_all(interleaved(Tokens().families(2, 2, 64, 16)))
    assert type(harness.scheduler.waiting_queue) is list
    harness.run()
