"""Make every series from the one for the newest version: ``python patches/generate.py``.

``sglang-0.5.23/*.patch`` is the source: messages, and what is changed. For each older version a hunk goes to the place
that it fits; where a version differs, ``differences/sglang-VERSION/NNNN.patch`` is applied on top, and a hunk that fits
nowhere must have its counterpart there. Written: the series, exact for each version, and ``manifest.json``. They lie in
the package, so that ``feather patch`` has them wherever it is installed; the folders beside this file link to them.
"""

from __future__ import annotations

import argparse
import json
import os
import zipfile
from pathlib import Path

from feather_sglang.patch.diff import FileDiff, apply, carry_over, parse, write
from feather_sglang.patch.series import FOLDER, MANIFEST, Series, digest

HERE = Path(__file__).resolve().parent
SOURCE = "0.5.23"
WHEELS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feather-sglang" / "wheels"


class Published:
    """Files of a published wheel, by their path from the root of a checkout."""

    def __init__(self, version: str, wheels: Path) -> None:
        (path,) = wheels.glob(f"sglang-{version}-*.whl")
        self._archive = zipfile.ZipFile(path)
        self._names = set(self._archive.namelist())

    def text(self, path: str) -> str | None:
        name = path.removeprefix("python/")
        return self._archive.read(name).decode() if name in self._names else None


def generate(version: str, wheels: Path, differences: Path = HERE / "differences") -> dict[str, str]:
    """The files of the series for a version, by name.

    :raises ValueError: if a hunk fits nowhere and nothing is said of its file.
    """
    source = Series(FOLDER / f"sglang-{SOURCE}")
    published = Published(version, wheels)
    now: dict[str, str | None] = {}
    states: dict[str, list[tuple[int, str | None]]] = {}
    out: dict[str, str] = {}
    for number, name in enumerate(source.names, start=1):
        before = dict(now)
        path = differences / f"sglang-{version}" / f"{name[:4]}.patch"
        special = {diff.path: diff for diff in parse(path.read_text())} if path.exists() else {}
        for diff in source.diffs[number - 1].values():
            text = now[diff.path] if diff.path in now else published.text(diff.path)
            before.setdefault(diff.path, text)
            states.setdefault(diff.path, [(0, _digest(text))])
            now[diff.path] = _changed(version, name, diff, text, special.pop(diff.path, None))
            if now[diff.path] != before[diff.path]:
                states[diff.path].append((number, _digest(now[diff.path])))
        if special:
            raise ValueError(f"{path}: the source has no change of {', '.join(special)}")
        changed = "".join(write(path, before[path], now[path]) for path in sorted(source.diffs[number - 1]))
        out[name] = _message(source.text(name)) + changed
    out["series"] = (source.folder / "series").read_text()
    manifest = {"sglang": version, "files": {path: states[path] for path in sorted(states)}}
    out[MANIFEST] = json.dumps(manifest, indent=1) + "\n"
    return out


def _changed(version: str, name: str, diff: FileDiff, text: str | None, special: FileDiff | None) -> str | None:
    if version == SOURCE:
        return apply(diff, text)
    after, lost = carry_over(diff, text)
    if lost and special is None:
        lines = "".join(lost[0].lines)
        raise ValueError(f"{name}: {len(lost)} hunk(s) of {diff.path} fit nowhere in {version}:\n{lines}")
    return after if special is None else apply(special, after)


def _message(text: str) -> str:
    return text[: text.index("\ndiff --git ") + 1]


def _digest(text: str | None) -> str | None:
    return digest(None if text is None else text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="folder of the published wheels: `make setup`")
    wheels = parser.parse_args().wheels
    versions = [path.name.removeprefix("sglang-") for path in (HERE / "differences").glob("sglang-*")]
    for version in [SOURCE, *sorted(versions)]:
        folder = FOLDER / f"sglang-{version}"
        folder.mkdir(exist_ok=True)
        for name, text in generate(version, wheels).items():
            (folder / name).write_text(text)


if __name__ == "__main__":
    main()
