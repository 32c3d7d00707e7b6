"""One place holds the version, and the documents of a release know it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import feather_sglang
from feather_sglang.sglang import compat

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "cht-rs/Cargo.toml").read_text())["package"]["version"]

STATES_ONE = re.compile(r"""^\s*["']?(?:__version__|version)["']?\s*[:=]\s*["']?\d+\.\d""", re.MULTILINE)
"""``version = "1.2"`` and the like, in TOML, Python, JSON or YAML."""

OTHERS = {"Cargo.lock", "cht-rs/fuzz/Cargo.lock", "tests/patches/test_apply.py"}
"""Of other packages, or written by cargo."""


def test_one_place_holds_it():
    files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    kinds = (".toml", ".py", ".pyi", ".cfg", ".lock", ".yml", ".yaml", ".rs")
    places = [
        name
        for name in files
        if name.endswith(kinds)
        and name not in OTHERS
        and (ROOT / name).is_file()
        and STATES_ONE.search((ROOT / name).read_text())
    ]
    assert places == ["cht-rs/Cargo.toml"]


def test_what_is_installed_has_it():
    """After a change of the version: `make setup`."""
    assert feather_sglang.__version__ == VERSION


def test_the_changelog_begins_with_it():
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(name for name in headings if name != "Unreleased") == VERSION


def test_the_image_is_that_of_the_newest_supported_version():
    (image,) = re.findall(r"^FROM (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert image == f"lmsysorg/sglang:v{compat.supported_versions[-1]}"


def test_the_workflow_runs_what_there_is():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    verbs = set(re.findall(r"\bmake ([a-z-]+)", workflow))
    assert verbs >= {"check", "test", "wheel"}
    known = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert verbs <= known
