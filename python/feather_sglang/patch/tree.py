"""A copy of SGLang on disk: where it is, which version, and how much of a series is in it."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feather_sglang.patch.series import Series, digest

RECORD = "python/sglang/feather_patches.json"
PYTHON = "python/"


class PatchError(Exception):
    """One line: what was wrong, what was expected, what to do."""


@dataclass(frozen=True)
class Tree:
    """:param package: the folder ``sglang``.
    :param checkout: the root of a checkout; None: an installed package.
    """

    package: Path
    checkout: Path | None

    @classmethod
    def at(cls, path: Path | None) -> Tree:
        """A package folder, its parent or a checkout; None: the installed one.

        :raises PatchError: if there is none.
        """
        if path is None:
            spec = importlib.util.find_spec("sglang")
            if spec is None or spec.origin is None:
                raise PatchError("no SGLang is installed here; expected one, or its folder. Give --sglang PATH.")
            path = Path(spec.origin).parent
        for package in (path / "python" / "sglang", path / "sglang", path):
            if (package / "srt" / "managers").is_dir():
                package = package.resolve()
                root = package.parents[1]
                return cls(package, root if package.parent.name == "python" else None)
        raise PatchError(
            f"{path} is no SGLang; expected its package folder, the folder that it is in, or a checkout. Give one of "
            "these as --sglang PATH."
        )

    def path(self, name: str) -> Path | None:
        """A file by its path from the root of a checkout; None: it has no place in an installed package."""
        if self.checkout is not None:
            return self.checkout / name
        return self.package.parent / name.removeprefix(PYTHON) if name.startswith(PYTHON) else None

    def read(self, name: str) -> bytes | None:
        """None: there is no such file."""
        path = self.path(name)
        return path.read_bytes() if path is not None and path.is_file() else None

    def stated_version(self) -> str | None:
        """What its own files say; None: nothing, as in a checkout that was never built."""
        try:
            found = re.search(r"^__version__ = .*'([^']+)'", (self.package / "_version.py").read_text(), re.MULTILINE)
        except FileNotFoundError:
            found = None
        if found:
            return found[1]
        infos = list(self.package.parent.glob("sglang-*.dist-info"))
        return infos[0].name.removesuffix(".dist-info").removeprefix("sglang-") if len(infos) == 1 else None

    def record(self) -> dict[str, Any] | None:
        """What ``apply`` left; None: it did not."""
        content = self.read(RECORD)
        return None if content is None else json.loads(content)

    def series(self, known: dict[str, Series]) -> Series:
        """The series for it.

        :raises PatchError: if there is none.
        """
        version = self.stated_version()
        versions = ", ".join(known)
        if version in known:
            return known[version]
        if version is not None:
            raise PatchError(
                f"{self.package} is SGLang {version}; expected one of {versions}. Install one of these, or load "
                "the plugin (--feather-on-mismatch fcfs has it serve unknown versions first come, first served)."
            )
        fits = [series for series in known.values() if not state_of(self, series).foreign]
        if len(fits) == 1:
            return fits[0]
        raise PatchError(
            f"{self.package} does not say its version, and its files are those of none of {versions}. Check out the "
            "tag of one of these, without changes of your own."
        )


@dataclass(frozen=True)
class State:
    """How much of a series is in a tree."""

    steps: dict[str, int]
    """By file: the position of its digest in the manifest."""
    lasts: dict[str, int]
    """By file: that of the file with all patches."""
    foreign: list[str]
    """Files that are at none of these steps."""

    @property
    def is_clean(self) -> bool:
        return not self.foreign and not any(self.steps.values())

    @property
    def is_applied(self) -> bool:
        return not self.foreign and self.steps == self.lasts

    def __str__(self) -> str:
        if self.foreign:
            return f"changed by others: {', '.join(self.foreign)}"
        if self.is_clean:
            return "not applied"
        if self.is_applied:
            return "applied"
        ahead = [name for name, step in self.steps.items() if step != self.lasts[name]]
        return f"applied in part: not in {', '.join(ahead)}"


def state_of(tree: Tree, series: Series) -> State:
    """Compare every file of a series with the manifest."""
    steps, lasts, foreign = {}, {}, []
    for name, digests in series.manifest["files"].items():
        if tree.path(name) is None:
            continue
        lasts[name] = len(digests) - 1
        found = [step for step, (_, known) in enumerate(digests) if known == digest(tree.read(name))]
        if found:
            steps[name] = found[0]
        else:
            foreign.append(name)
    return State(steps, lasts, foreign)
