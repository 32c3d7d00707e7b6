"""The wheel, beside an SGLang that is already there: it must bring itself and move nothing else."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_path("purelib"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    maturin = [sys.executable, "-m", "maturin", "build", "--release", "--quiet", "--out", str(out)]
    subprocess.run(maturin, cwd=ROOT, check=True)
    (built,) = out.glob("*.whl")
    return built


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


def test_it_serves_every_python_from_311(wheel: Path) -> None:
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "feather_sglang/_cht.abi3.so" in names
    assert {"feather_sglang/py.typed", "feather_sglang/_cht.pyi"} < set(names)
    assert {f"feather_sglang/patches/sglang-0.5.{n}/manifest.json" for n in (20, 21, 22, 23)} < set(names)
    tops = {name.split("/")[0] for name in names}
    assert tops == {"feather_sglang", wheel.name.split("-cp")[0] + ".dist-info"}
    assert not [name for name in names if "__pycache__" in name]


def test_it_changes_one_line_of_pip_freeze(wheel: Path, stock: Path) -> None:
    before = freeze(stock)
    assert any(line.startswith("sglang==") for line in before)
    install = [stock, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True)
    after = freeze(stock)
    assert before - after == set()
    (line,) = after - before
    assert line.startswith("feather-sglang ")
    light = "import sys, feather_sglang._cht; print({'torch', 'sglang', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([stock, "-c", light], text=True) == "set()\n"
    assert subprocess.check_output([stock.parent / "feather", "--version"], text=True).startswith("feather-sglang 0.")
