"""Where data lies, and reading it: what is wrong is one line that names the file and the line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import feather_sglang
from feather_sglang.cli.errors import UsageError
from feather_sglang.simulate.traces.lines import Line, TraceError, read_lines

FOLDER = Path(feather_sglang.__file__).resolve().parents[2] / "bench" / "data"
"""The data sets of a source checkout; an installed wheel does not carry them."""


def lines_of(path: Path) -> list[Line]:
    """:raises TraceError: if the file cannot be read or is empty, or a line is not a JSON object."""
    lines = list(read_lines(path))
    if not lines:
        raise TraceError(f"{path} is empty; expected one JSON object a line")
    return lines


@contextmanager
def told() -> Iterator[None]:
    """What is wrong with a file is something the user can mend.

    :raises UsageError: in place of a ``TraceError``.
    """
    try:
        yield
    except TraceError as error:
        raise UsageError(str(error)) from None
