"""JSON lines, and what is wrong with them: every message names the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class TraceError(ValueError):
    """A trace that cannot be used. One line: where, what was wrong, what was expected, what to do."""


class Line:
    """One JSON object of a file.

    :param number: from 1.
    """

    __slots__ = ("fields", "number", "path")

    def __init__(self, path: Path, number: int, fields: dict[str, Any]) -> None:
        self.path = path
        self.number = number
        self.fields = fields

    @property
    def where(self) -> str:
        """File and line."""
        return f"{self.path}, line {self.number}"

    def wrong(self, what: str, expected: str) -> TraceError:
        """The error to raise for this line."""
        return TraceError(f"{self.where}: {what}; expected {expected}. Mend the line or remove it.")

    def number_of(self, name: str) -> float:
        """A field that is a number of at least 0."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.wrong(f"`{name}` is {_shown(self.fields, name)}", "a number of at least 0")
        return value

    def whole(self, name: str, least: int = 0) -> int:
        """A field that is a whole number of at least ``least``."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(f"`{name}` is {_shown(self.fields, name)}", f"a whole number of at least {least}")
        return value

    def text(self, name: str) -> str:
        """A field that is a text."""
        value = self.fields.get(name)
        if not isinstance(value, str):
            raise self.wrong(f"`{name}` is {_shown(self.fields, name)}", "a text")
        return value

    def wholes(self, name: str) -> list[int]:
        """A field that is a list of whole numbers of at least 0."""
        value = self.fields.get(name)
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self.wrong(f"`{name}` is {_shown(self.fields, name)}", "a list of whole numbers of at least 0")
        return value


def read_lines(path: Path) -> Iterator[Line]:
    """The objects of a file, one a line; empty lines are passed over.

    :raises TraceError: if the file cannot be read, or a line is not a JSON object.
    """
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    fields = json.loads(text)
                except ValueError as error:  # UnicodeDecodeError is one
                    raise TraceError(
                        f"{path}, line {number}: this is not JSON ({error}); expected one JSON object a line. "
                        "Mend the line or remove it."
                    ) from None
                if not isinstance(fields, dict):
                    raise TraceError(
                        f"{path}, line {number}: this is a JSON {type(fields).__name__}; expected a JSON object. "
                        "Mend the line or remove it."
                    )
                yield Line(path, number, fields)
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror}): give an existing file") from None


def _shown(fields: Mapping[str, Any], name: str) -> str:
    text = json.dumps(fields[name]) if name in fields else "missing"
    return text if len(text) <= 60 else f"{text[:57]}..."
