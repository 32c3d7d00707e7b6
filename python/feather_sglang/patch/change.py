"""Changes of many files that are all made or none: written beside, then renamed, undone if one of them fails."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from feather_sglang.patch.diff import DiffError, FileDiff, apply, revert
from feather_sglang.patch.series import Series, digest
from feather_sglang.patch.tree import RECORD, PatchError, State, Tree, state_of

_BESIDE = ".feather-new"


def apply_series(tree: Tree, series: Series, made_by: str) -> bool:
    """Put a series into a tree; False: it is in it already.

    :param made_by: goes into the record.
    :raises PatchError: and the tree is as it was.
    """
    state = _known(tree, series)
    if state.is_applied:
        return False
    if not state.is_clean:
        raise PatchError(
            f"{tree.package}: the patches are {state}. Somebody began by hand: take that back with `feather patch "
            "revert`, then apply."
        )
    contents: dict[str, bytes | None] = {}
    for name in state.steps:
        content = tree.read(name)
        text = None if content is None else content.decode()
        for diffs in series.diffs:
            if name in diffs:
                text = _exactly(apply, diffs[name], text)
        contents[name] = _verified(series, name, text, state.lasts[name])
    record = {
        "schema": "feather-patches/1",
        "sglang": series.version,
        "made_by": made_by,
        "patches": series.names,
        "files": {name: digest(content) for name, content in contents.items()},
    }
    contents[RECORD] = (json.dumps(record, indent=2) + "\n").encode()
    replace(tree, contents)
    return True


def revert_series(tree: Tree, series: Series) -> bool:
    """Take a series out of a tree, or the part of it that is in; False: nothing is.

    :raises PatchError: and the tree is as it was.
    """
    state = _known(tree, series)
    contents: dict[str, bytes | None] = {}
    for name, step in state.steps.items():
        if step == 0:
            continue
        content = tree.read(name)
        text = None if content is None else content.decode()
        digests = series.manifest["files"][name]
        for patch, _ in reversed(digests[1 : step + 1]):
            text = _exactly(revert, series.diffs[patch - 1][name], text)
        contents[name] = _verified(series, name, text, 0)
    if tree.read(RECORD) is not None:
        contents[RECORD] = None
    if not contents:
        return False
    replace(tree, contents)
    return True


def replace(tree: Tree, contents: dict[str, bytes | None]) -> None:
    """Give files these contents, all of them or none.

    :param contents: by path from the root of a checkout; None: the file goes.
    :raises PatchError: if it failed; it says whether the tree is as it was.
    """
    before = {name: tree.read(name) for name in contents}
    paths = {name: path for name in contents if (path := tree.path(name)) is not None}
    beside = {name: path.with_name(path.name + _BESIDE) for name, path in paths.items()}
    made: list[Path] = []
    done: list[str] = []
    try:
        for name, content in contents.items():
            if content is not None:
                made += _make_folders(paths[name].parent)
                _write(beside[name], content, like=paths[name])
        for name, content in contents.items():
            done.append(name)
            if content is None:
                paths[name].unlink()
            else:
                os.replace(beside[name], paths[name])
    except BaseException as error:
        lost = [name for name in done if not _restore(paths[name], before[name])]
        for path in beside.values():
            path.unlink(missing_ok=True)
        for folder in reversed(made):
            _remove_if_empty(folder)
        if not isinstance(error, OSError):
            raise
        if lost:
            raise PatchError(
                f"{error}; and these could not be put back: {', '.join(lost)}. Mend the cause, then `feather patch "
                "revert`, or install SGLang anew."
            ) from error
        raise PatchError(f"{error}. Nothing was changed: mend that, and try again.") from error
    for name, content in contents.items():
        folder = paths[name].parent
        while content is None and _remove_if_empty(folder):
            folder = folder.parent


def _known(tree: Tree, series: Series) -> State:
    state = state_of(tree, series)
    if state.foreign:
        record = tree.record()
        mend = f"{record['made_by']} patched it: use that version to revert." if record else "Undo these changes first."
        raise PatchError(f"{tree.package} is not SGLang {series.version} as it was published: {state}. {mend}")
    return state


def _exactly(change: Callable[[FileDiff, Any], str | None], diff: FileDiff, text: str | None) -> str | None:
    try:
        return change(diff, text)
    except DiffError as error:  # the manifest knew the file: the series itself is damaged
        raise PatchError(f"the patches themselves are damaged: {error}. Install feather-sglang anew.") from error


def _verified(series: Series, name: str, text: str | None, step: int) -> bytes | None:
    content = None if text is None else text.encode()
    if digest(content) != series.manifest["files"][name][step][1]:
        raise PatchError(f"the patches themselves are damaged: {name} would be wrong. Install feather-sglang anew.")
    return content


def _make_folders(folder: Path) -> list[Path]:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir()
    return missing[::-1]


def _write(path: Path, content: bytes, like: Path) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if like.exists():
        shutil.copymode(like, path)


def _restore(path: Path, content: bytes | None) -> bool:
    """Put a file back; False: that failed too."""
    try:
        if content is None:
            path.unlink(missing_ok=True)
        elif not path.is_file() or path.read_bytes() != content:
            beside = path.with_name(path.name + _BESIDE)
            _write(beside, content, like=path)
            os.replace(beside, path)
    except OSError:
        return False
    return True


def _remove_if_empty(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
