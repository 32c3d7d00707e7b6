"""Copies of the published versions, to be patched: from the wheels that `make setup` fetched."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from feather_sglang.patch.series import Series, all_series

WHEELS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feather-sglang" / "wheels"
SERIES = all_series()
NEWEST = list(SERIES)[-1]


def unpack(version: str, to: Path, *, every: bool = False) -> Path:
    """The Python files of a published wheel that the patches may touch, or all of it; returns ``to``."""
    (wheel,) = WHEELS.glob(f"sglang-{version}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = [
            n for n in archive.namelist() if every or (n.startswith(("sglang/srt/", "sglang/_")) and n[-3:] == ".py")
        ]
        archive.extractall(to, names)
    return to


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a tree, byte for byte."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Gives the folder that holds ``sglang`` of a version; not to be changed."""
    folders: dict[str, Path] = {}

    def of(version: str) -> Path:
        if version not in folders:
            folders[version] = unpack(version, tmp_path_factory.mktemp("published"))
        return folders[version]

    return of


@pytest.fixture
def site(published: Callable[[str], Path], tmp_path: Path) -> Path:
    """Files of the newest version that its series touches, as in an environment."""
    return small_copy(SERIES[NEWEST], published(NEWEST), tmp_path / "site")


def small_copy(series: Series, source: Path, to: Path) -> Path:
    """The files of a tree that a series touches, and what says its version."""
    for name in [*series.manifest["files"], "python/sglang/_version.py", "python/sglang/srt/managers/tp_worker.py"]:
        path = source / name.removeprefix("python/")
        if path.exists():
            target = to / name.removeprefix("python/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return to
