"""Every version for which there is a series: what was published is patched, compiled, checked, and taken back."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from feather_sglang.patch.change import apply_series, revert_series
from feather_sglang.patch.series import MANIFEST
from feather_sglang.patch.tree import Tree, state_of
from feather_sglang.sglang import compat
from patches import generate, matrix
from tests.patches.conftest import NEWEST, SERIES, WHEELS, contents, small_copy
from tests.patches.signatures import functions, problems

VERSIONS = list(SERIES)


def test_there_is_a_series_for_every_supported_version():
    assert tuple(VERSIONS) == compat.supported_versions


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def tree(version, published, tmp_path):
    return Tree.at(small_copy(SERIES[version], published(version), tmp_path / "site"))


def test_it_is_generated(version):
    series = SERIES[version]
    files = generate.generate(version, WHEELS)
    assert {path.name for path in series.folder.iterdir()} == files.keys()
    assert files.keys() == {*series.names, "series", MANIFEST}
    for name, text in files.items():
        assert (series.folder / name).read_text() == text, f"{name}: run patches/generate.py"


def test_it_applies_compiles_names_nothing_unknown_and_reverts(version, tree):
    series, site = SERIES[version], tree.package.parent
    before = contents(site)
    assert tree.series(SERIES) is series
    assert apply_series(tree, series, "test")
    files = [path for name in series.manifest["files"] if (path := tree.path(name)) is not None]
    for path in files:
        ast.parse(path.read_text())
    subprocess.run([sys.executable, "-m", "ruff", "check", "-q", "--isolated", "--select", "F821", *files], check=True)
    assert revert_series(tree, series)
    assert contents(site) == before


def test_each_patch_stands_without_the_next(version, tree):
    """Applied by hand to an installed wheel, one after the other: what each uses is there."""
    series, site = SERIES[version], tree.package.parent
    for name in series.names[:-1]:
        subprocess.run(["patch", "-p2", "-s", "--fuzz=0", "-d", site, "-i", series.folder / name], check=True)
        files = [path for name in series.manifest["files"] if (path := tree.path(name)) is not None and path.exists()]
        subprocess.run(
            [sys.executable, "-m", "ruff", "check", "-q", "--isolated", "--select", "F821", *files], check=True
        )
    assert state_of(tree, series).is_applied
    assert not list(site.rglob("*.orig"))


@pytest.mark.parametrize("program", ["git", "patch"])
def test_by_hand_in_a_checkout(version, published, tmp_path, program):
    root = tmp_path / "checkout"
    shutil.copytree(small_copy(SERIES[version], published(version), tmp_path / "site"), root / "python")
    subprocess.run(["git", "init", "-q", root], check=True)
    series = SERIES[version]
    patches = [series.folder / name for name in series.names]
    if program == "git":
        subprocess.run(["git", "apply", *patches], cwd=root, check=True)
    for patch in patches if program == "patch" else ():
        subprocess.run(["patch", "-p1", "-s", "--fuzz=0", "-i", patch], cwd=root, check=True)
    assert state_of(Tree.at(root), series).is_applied


def test_every_hook_fits_by_its_signature(version, published):
    """Without importing anything of that version."""
    assert problems(published(version)) == []


def test_a_signature_that_changed_is_found(published, tmp_path):
    site = shutil.copytree(published(NEWEST), tmp_path / "site")
    path = site / "sglang/srt/managers/scheduler.py"
    path.write_text(
        path.read_text().replace("def update_running_batch(self, batch:", "def update_running_batch(self, rows:")
    )
    assert set(problems(site)) == {
        "sglang.srt.managers.scheduler.Scheduler.update_running_batch has no parameter batch"
    }
    path.write_text(path.read_text().replace("def flush_cache(", "def drop_cache("))
    assert "sglang.srt.managers.scheduler.Scheduler.flush_cache does not exist" in problems(site)


def test_the_registrys_policy_has_every_method_of_the_native_one(version, tree):
    apply_series(tree, SERIES[version], "test")
    registry = functions(tree.package / "srt/managers/schedule_policy_registry.py")
    native = functions(Path(compat.__file__).with_name("native.py"))
    for name, parameters in native.items():
        owner, dot, method = name.partition(".")
        if dot and owner == "FeatherPolicy" and method != "of":
            assert registry[f"ExternalSchedulePolicy.{method}"] == parameters, method


def test_the_last_run_with_other_dependencies_is_at_hand_and_was_sound():
    """`make matrix`, which this does not run."""
    result = json.loads(matrix.RESULT.read_text())
    assert result["schema"] == matrix.SCHEMA
    assert {matrix.DEFAULT} <= result["versions"].keys() <= set(VERSIONS)
    for version, found in result["versions"].items():
        assert found["with"]["sglang"] == version
        assert (found["failed"], found["passed"].keys() >= {"tests/live/test_patched.py"}) == ({}, True)


def test_what_failed_is_told_from_what_passed(tmp_path):
    tests = "import pytest\ndef test_a(): pass\ndef test_b(): assert 1 == 2\ndef test_c(): pytest.skip('why')\n"
    (tmp_path / "test_some.py").write_text(tests + "@pytest.fixture\ndef x(): 1 / 0\ndef test_d(x): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=report.xml", "test_some.py"]
    subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    found = matrix.outcomes(tmp_path / "report.xml")
    assert found["passed"] == {"test_some.py": 1}
    assert found["skipped"] == {"test_some.py::test_c": "why"}
    assert found["failed"] == {
        "test_some.py::test_b": "assert 1 == 2",
        "test_some.py::test_d": 'failed on setup with "ZeroDivisionError: division by zero"',
    }
