"""A series: the patches for one version of SGLang, and what the files that they touch look like at every step."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from feather_sglang.patch.diff import FileDiff, parse

FOLDER = Path(__file__).resolve().parents[1] / "patches"
MANIFEST = "manifest.json"


class Series:
    """The patches in one folder, by the names in its file ``series``.

    :param folder: ``sglang-VERSION``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = folder.name.removeprefix("sglang-")
        lines = (folder / "series").read_text().splitlines()
        self.names = [line.split("#")[0].strip() for line in lines if line and not line.startswith("#")]

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """``files``: by path from the root of a checkout, a list of ``[patch, sha256]``: the digest of the file before
        the first patch (0) and after each that touches it (1, 2, ...); null: there is no such file."""
        manifest: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text())
        return manifest

    @cached_property
    def diffs(self) -> list[dict[str, FileDiff]]:
        """For each patch, its files by path."""
        return [{diff.path: diff for diff in parse(self.text(name))} for name in self.names]

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def title(self, name: str) -> str:
        """The first line of its commit message."""
        first = self.text(name).splitlines()[0]
        return first.partition("] ")[2]


def digest(content: bytes | None) -> str | None:
    """None: there is no file."""
    return None if content is None else hashlib.sha256(content).hexdigest()


def all_series(folder: Path = FOLDER) -> dict[str, Series]:
    """By version, the oldest first."""
    found = [Series(path.parent) for path in folder.glob("sglang-*/series")]
    return {series.version: series for series in sorted(found, key=lambda s: [int(n) for n in s.version.split(".")])}
