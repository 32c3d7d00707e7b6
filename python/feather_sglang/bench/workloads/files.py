"""Reading data: what is wrong is one line that names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import feather_sglang
from feather_sglang.cli.errors import UsageError

FOLDER = Path(feather_sglang.__file__).resolve().parents[2] / "bench" / "data"
"""The data sets of a source checkout; an installed wheel does not carry them."""


def text_of(path: Path, advice: str = "give an existing file") -> str:
    """:raises UsageError: if it cannot be read, or is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): {advice}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text: expected JSON") from None


def json_lines(path: Path, advice: str = "give an existing file") -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with its place (``FILE, line N``).

    :raises UsageError: if the file cannot be read or is empty, or a line is not a JSON object.
    """
    lines = [(n, line) for n, line in enumerate(text_of(path, advice).splitlines(), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{path} is empty: expected one JSON object a line")
    for number, line in lines:
        where = f"{path}, line {number}"
        try:
            content = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{where} is damaged ({error}): expected one JSON object") from None
        if not isinstance(content, dict):
            raise UsageError(f"{where} holds a {type(content).__name__}: expected one JSON object")
        yield where, content


def damaged(where: str, expected: str) -> NoReturn:
    """:raises UsageError: always."""
    raise UsageError(f"{where} is damaged: expected {expected}")
