"""``feather doctor`` on this environment, which `make setup` made, and on ones that are broken in one place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from feather_sglang.cli import server

pytestmark = pytest.mark.slow


def doctor(**environment: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "feather_sglang.cli.main", "doctor", "--json"]
    done = subprocess.run(command, env=server.quick_environment() | environment, capture_output=True, timeout=300)
    return done.returncode, json.loads(done.stdout)


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


def test_a_filter_that_hides_the_plugin() -> None:
    status, report = doctor(SGLANG_PLUGINS="feather_cpu", FEATHER_DISABLE="1")
    assert status == 1
    assert report["checks"]["plugin"]["remedy"] == "export SGLANG_PLUGINS=feather_cpu,feather"
    assert "is not in place" in report["checks"]["hooks"]["problem"]
    assert report["checks"]["policy"]["value"].startswith("off: FEATHER_DISABLE")
    assert "FEATHER_DISABLE=1" in report["checks"]["environment"]["value"]


def test_a_platform_that_does_not_exist() -> None:
    status, report = doctor(SGLANG_PLATFORM="moon")
    assert status == 1
    assert "'moon' not found" in report["checks"]["platform"]["problem"]


def test_it_can_be_read_by_people() -> None:
    command = [sys.executable, "-m", "feather_sglang.cli.main", "doctor"]
    environment = os.environ | {"SGLANG_PLUGINS": "nothing"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert "mend it with" in done.stdout
    assert done.stdout.endswith("something is wrong: see above\n")
