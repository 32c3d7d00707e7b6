"""What `make wheel` builds: it runs where there is no cargo, on older systems, and brings nothing but itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_path("purelib"))

BATCH = """
import sys
from feather_sglang.core.interface import Limits, Request
from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.core.settings import Settings

core = SchedulerCore(Settings(barrier_min=0))
for id in range(4):  # two families
    core.enqueue(Request(id, 80, (0, id), tokens=([id % 2] * 64, [100 + id] * 16)))
core.begin([], [])
plan = core.plan_admissions(Limits(kv_tokens=10_000, rows=4, prefill_tokens=1_000, idle=True))
print([candidate.id for candidate in plan.order], plan.held, {"torch", "sglang", "numpy"} & set(sys.modules))
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of wheels and sdists; each wheel is built from its sdist."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        ["make", "--no-print-directory", "-s", "-o", "setup", "wheel", f"DIST={folder}"], cwd=ROOT, check=True
    )
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (built,) = dist.glob("feather_sglang-*.whl")
    return built


def test_both_distributions_are_built_and_have_the_licence(dist: Path) -> None:
    kinds = sorted(re.sub(r"-.*(\.tar\.gz|\.whl)$", r"\1", path.name) for path in dist.glob("feather*"))
    assert kinds == [
        "feather_sglang.tar.gz",
        "feather_sglang.whl",
        "feather_sglang_cpu.tar.gz",
        "feather_sglang_cpu.whl",
    ]
    licence = (ROOT / "LICENSE").read_bytes()
    for path in dist.glob("*.whl"):
        with zipfile.ZipFile(path) as archive:
            (found,) = (name for name in archive.namelist() if name.endswith(".dist-info/licenses/LICENSE"))
            assert archive.read(found) == licence
    for path in dist.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            found = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/LICENSE")
            assert found is not None
            assert found.read() == licence


def test_it_serves_every_python_from_311_on_systems_of_2014(wheel: Path) -> None:
    assert re.search(r"-cp311-abi3-manylinux2014_(\w+)\.manylinux_2_17_\1\.whl$", wheel.name)


def test_the_extension_asks_for_no_newer_glibc_than_its_tag_says(wheel: Path, tmp_path: Path) -> None:
    """Names of symbol versions stand in its string table."""
    with zipfile.ZipFile(wheel) as archive:
        extension = archive.read("feather_sglang/_cht.abi3.so")
    asked = {tuple(map(int, version.split(b"."))) for version in re.findall(rb"GLIBC_(\d+(?:\.\d+)+)", extension)}
    assert (2,) < max(asked) <= (2, 17)
    assert b"cpython-3" not in extension


def test_it_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "feather_sglang/_cht.abi3.so" in names
    assert {"feather_sglang/py.typed", "feather_sglang/_cht.pyi"} < set(names)
    assert {f"feather_sglang/patches/sglang-0.5.{n}/manifest.json" for n in (20, 21, 22, 23)} < set(names)
    tops = {name.split("/")[0] for name in names}
    assert tops == {"feather_sglang", wheel.name.split("-cp")[0] + ".dist-info"}
    assert not [name for name in names if "__pycache__" in name]


def test_it_forms_a_batch_where_there_is_nothing_else(dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "clean", symlinks=True)
    python = tmp_path / "clean" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"]
    elsewhere = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*pip, *dist.glob("*.whl")], env=elsewhere, check=True)
    alone = {"PATH": str(python.parent)}
    assert shutil.which("cargo", path=alone["PATH"]) is None

    def run(*command: str | Path) -> str:
        return subprocess.check_output(command, env=alone, cwd=tmp_path, text=True)

    assert run(python, "-c", BATCH) == "[0, 1] 2 set()\n"
    version = run(python.parent / "feather", "--version")
    assert version == run(python, "-c", "import feather_sglang as f; print('feather-sglang', f.__version__)")
    assert run(python, "-c", "import feather_sglang_cpu as f; print(f.NAME)") == "feather_cpu\n"


@pytest.fixture
def stock(tmp_path: Path) -> Path:
    """The Python of an environment with this one's packages, but none of this project's."""
    venv.create(tmp_path / "stock", symlinks=True)
    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in SITE.iterdir():
        if "feather" not in entry.name and not entry.name.startswith("__editable__"):
            (packages / entry.name).symlink_to(entry)
    (own,) = (tmp_path / "stock" / "lib").glob("python*/site-packages")
    (own / "stock.pth").write_text(f"{packages}\n")
    return tmp_path / "stock" / "bin" / "python"


def freeze(python: Path) -> set[str]:
    return set(subprocess.check_output([python, "-m", "pip", "freeze"], text=True).splitlines())


def test_it_changes_one_line_of_pip_freeze(wheel: Path, stock: Path) -> None:
    before = freeze(stock)
    assert any(line.startswith("sglang==") for line in before)
    install = [stock, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True)
    after = freeze(stock)
    assert before - after == set()
    (line,) = after - before
    assert line.startswith("feather-sglang ")
