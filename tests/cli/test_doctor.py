"""``feather doctor`` on this environment, which `make setup` made, and on ones that are broken in one place."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from feather_sglang.cli import doctor as cli_doctor
from feather_sglang.cli import server
from feather_sglang.cli.doctor import Finding
from tests.waiting import PATIENCE


def doctor(**environment: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "feather_sglang.cli.main", "doctor", "--json"]
    done = subprocess.run(command, env=server.quick_environment() | environment, capture_output=True, timeout=PATIENCE)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.slow
def test_a_sound_environment() -> None:
    status, report = doctor()
    assert {subject: check for subject, check in report["checks"].items() if check["problem"]} == {}
    assert status == 0
    assert report["ok"] is True
    assert report["schema"] == {"name": "feather doctor", "version": 1}
    checks = report["checks"]
    assert checks["sglang"]["value"] == "0.5.23"
    assert checks["hooks"]["value"] == "all in place"
    assert checks["policy"]["value"].startswith("on")


@pytest.mark.slow
def test_a_filter_that_hides_the_plugin() -> None:
    status, report = doctor(SGLANG_PLUGINS="feather_cpu", FEATHER_DISABLE="1")
    assert status == 1
    assert report["checks"]["plugin"]["remedy"] == "export SGLANG_PLUGINS=feather_cpu,feather"
    assert "is not in place" in report["checks"]["hooks"]["problem"]
    assert report["checks"]["policy"]["value"].startswith("off: FEATHER_DISABLE")
    assert "FEATHER_DISABLE=1" in report["checks"]["environment"]["value"]


@pytest.mark.slow
def test_a_platform_that_does_not_exist() -> None:
    status, report = doctor(SGLANG_PLATFORM="moon")
    assert status == 1
    assert "'moon' not found" in report["checks"]["platform"]["problem"]


def test_it_can_be_read_by_people(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> Finding:
        raise RuntimeError("no such thing\nat line 1")

    checks = {"one": lambda: Finding("1.0"), "two": lambda: Finding("0.1", "too old", "pip install two"), "3": broken}
    monkeypatch.setattr(cli_doctor, "_CHECKS", checks)
    assert cli_doctor.main([]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "ok     one                 1.0",
        "WRONG  two                 0.1: too old",
        "       mend it with        pip install two",
        "WRONG  3                   cannot be told: RuntimeError: no such thing",
        "",
        "something is wrong: see above",
    ]
