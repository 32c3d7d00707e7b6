"""Unified diffs: read, applied exactly, taken back, and carried over to a file that differs a little."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import NamedTuple

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
_BLOCK = re.compile(r"\s*(class|def|async def) ")
NOWHERE = "/dev/null"


class DiffError(ValueError):
    """A diff that cannot be read, or does not fit."""


class Hunk(NamedTuple):
    """Lines that replace others."""

    start: int
    """Line at which ``old`` begins, from 0."""
    lines: tuple[str, ...]
    """As in the diff: each after ``" "``, ``"-"`` or ``"+"``, with its line end."""

    @property
    def old(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] != "+"]

    @property
    def new(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] != "-"]


class FileDiff(NamedTuple):
    """What is changed in one file."""

    path: str
    """From the root of a checkout."""
    hunks: tuple[Hunk, ...]
    creates: bool = False


def parse(text: str) -> list[FileDiff]:
    """The files in a diff; what stands before them, a commit message say, is skipped.

    :raises DiffError: if it cannot be read.
    """
    lines = text.splitlines(keepends=True)
    files: list[FileDiff] = []
    at = 0
    while at < len(lines):
        if not (lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ b/")):
            at += 1
            continue
        source, path = lines[at][4:].strip(), lines[at + 1][6:].strip()
        at += 2
        hunks = []
        while at < len(lines) and (head := _HUNK.match(lines[at])):
            start, left = int(head[1]), int(head[2] or 1)
            begin = at = at + 1
            while at < len(lines) and lines[at][0] in " -+" and (left > 0 or lines[at][0] == "+"):
                left -= lines[at][0] != "+"
                at += 1
            hunks.append(Hunk(max(start - 1, 0), tuple(lines[begin:at])))
            if left or not hunks[-1].lines:
                raise DiffError(f"a hunk of {path} is cut short")
        files.append(FileDiff(path, tuple(hunks), creates=source == NOWHERE))
    return files


def apply(diff: FileDiff, text: str | None) -> str:
    """The file, changed.

    :param text: its content; None: there is no such file.
    :raises DiffError: unless every line of every hunk is where it says.
    """
    if diff.creates != (text is None):
        raise DiffError(f"{diff.path} {'is there already' if diff.creates else 'is not there'}")
    lines = (text or "").splitlines(keepends=True)
    out: list[str] = []
    done = 0
    for hunk in diff.hunks:
        end = hunk.start + len(hunk.old)
        if lines[hunk.start : end] != hunk.old:
            raise DiffError(f"{diff.path} is not what the patch expects at line {hunk.start + 1}")
        out += [*lines[done : hunk.start], *hunk.new]
        done = end
    return "".join(out + lines[done:])


def revert(diff: FileDiff, text: str) -> str | None:
    """The file before ``apply``; None: it was not there.

    :raises DiffError: unless every line of every hunk is where it says.
    """
    shift = 0
    hunks = []
    for hunk in diff.hunks:
        back = tuple({"+": "-", "-": "+", " ": " "}[line[0]] + line[1:] for line in hunk.lines)
        hunks.append(Hunk(hunk.start + shift, back))
        shift += len(hunk.new) - len(hunk.old)
    before = apply(FileDiff(diff.path, tuple(hunks)), text)
    return None if diff.creates and not before else before


def carry_over(diff: FileDiff, text: str | None, fuzz: int = 2) -> tuple[str | None, list[Hunk]]:
    """Make the change in another version of the file: each hunk goes to the nearest place that it fits.

    :param fuzz: lines of context at either end that may differ.
    :returns: the file, and the hunks that fit nowhere.
    """
    if diff.creates or text is None:
        return (apply(diff, text), []) if text is None and diff.creates else (text, list(diff.hunks))
    lines = text.splitlines(keepends=True)
    lost = []
    shift = 0
    for hunk in diff.hunks:
        found = _place(hunk, lines, hunk.start + shift, fuzz)
        if found is None:
            lost.append(hunk)
            continue
        at, old, new = found
        lines[at : at + len(old)] = new
        shift = at - hunk.start + len(new) - len(old)
    return "".join(lines), lost


def _place(hunk: Hunk, lines: Sequence[str], near: int, fuzz: int) -> tuple[int, list[str], list[str]] | None:
    marks = [line[0] for line in hunk.lines]
    changed = [i for i, mark in enumerate(marks) if mark != " "]
    before, after = changed[0], len(marks) - 1 - changed[-1]
    for cut in range(fuzz + 1):
        top, bottom = min(cut, before), min(cut, after)
        old = hunk.old[top : len(hunk.old) - bottom]
        new = hunk.new[top : len(hunk.new) - bottom]
        fits = [
            at for at in range(len(lines) - len(old) + 1) if lines[at] == old[0] and lines[at : at + len(old)] == old
        ]
        if fits:
            return min(fits, key=lambda at: abs(at - near - top)), old, new
    return None


def write(path: str, before: str | None, after: str | None) -> str:
    """The diff of one file, three lines of context, as ``git diff`` writes it; empty: there is none.

    :param before: None: the file is new.
    """
    old, new = (before or "").splitlines(keepends=True), (after or "").splitlines(keepends=True)
    if old == new:
        return ""
    head = f"diff --git a/{path} b/{path}\n" + ("new file mode 100644\n" if before is None else "")
    lines = difflib.unified_diff(old, new, NOWHERE if before is None else f"a/{path}", f"b/{path}")
    return head + "".join(_with_block(line, old) for line in lines)


def _with_block(line: str, old: Sequence[str]) -> str:
    """A hunk's head, with the class or function that it is in."""
    head = _HUNK.match(line)
    if head is None:
        return line
    above = (text for text in reversed(old[: max(int(head[1]) - 1, 0)]) if _BLOCK.match(text))
    return f"{head[0]} {next(above, '').strip()}".rstrip() + "\n"
