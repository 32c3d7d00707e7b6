"""Scenario 22: on an SGLang it does not know, or cannot hook, it refuses or serves FCFS: never half-hooked."""

from __future__ import annotations

import inspect

import pytest
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.managers.scheduler import Scheduler

from feather_sglang.sglang import compat
from feather_sglang.sglang.options import OptionError
from feather_sglang.sglang.start import MismatchError
from tests.harness.prompts import Tokens, interleaved


def unknown_version(monkeypatch):
    monkeypatch.setattr(compat, "supported_versions", ("0.5.1", "0.5.2"))


def dead_hook(monkeypatch):
    monkeypatch.setattr(Scheduler, "flush_cache", inspect.unwrap(Scheduler.flush_cache))


def dead_start(monkeypatch):
    monkeypatch.setattr(Scheduler, "__init__", inspect.unwrap(Scheduler.__init__))


def dead_pass(monkeypatch):
    monkeypatch.setattr(SchedulePolicy, "calc_priority", inspect.unwrap(SchedulePolicy.calc_priority))


def other_signature(monkeypatch):
    original = Scheduler.update_running_batch

    def update_running_batch(self, running):
        return original(self, running)

    monkeypatch.setattr(Scheduler, "update_running_batch", update_running_batch)


FAULTS = [
    (dead_hook, "the hook on sglang.srt.managers.scheduler.Scheduler.flush_cache is not in place"),
    (dead_start, "the hook on sglang.srt.managers.scheduler.Scheduler.__init__ is not in place"),
    (dead_pass, "the hook on sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority is not in place"),
    (other_signature, "sglang.srt.managers.scheduler.Scheduler.update_running_batch has no parameter batch"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_the_check_names_what_is_wrong(monkeypatch, fault, message):
    assert compat.check_hooks() == []
    fault(monkeypatch)
    assert compat.check_hooks() == [message]


def test_a_dead_hook_is_refused_in_one_line(start_alone, monkeypatch):
    dead_hook(monkeypatch)
    with pytest.raises(MismatchError) as refusal:
        start_alone()
    message = str(refusal.value)
    assert "\n" not in message
    assert "flush_cache is not in place" in message
    assert "--feather-on-mismatch fcfs" in message


def test_an_unknown_version_is_refused_before_anything_starts(start_alone, monkeypatch):
    unknown_version(monkeypatch)
    with pytest.raises(OptionError, match=r"SGLang \S+ is not one of the versions .* \(0.5.1 to 0.5.2\)"):
        start_alone()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [unknown_version, dead_start, dead_pass])
def test_or_it_serves_first_come_first_served_where_told_to(start_alone, monkeypatch, fault):
    fault(monkeypatch)
    harness = start_alone(options={"on_mismatch": "fcfs"})
    assert "feather" not in harness.scheduler.__dict__
    rids = harness.send_all(interleaved(Tokens().families(3, 3, 64, 16)))
    assert harness.run().admitted == rids
    if fault is not dead_start:  # then nobody is there to answer
        assert harness.state()["feather"]["policy"] == "fcfs"
