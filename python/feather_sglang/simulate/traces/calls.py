"""The lines of a recording of ``--feather-record``; see ``core.recording`` for the format."""

from __future__ import annotations

import binascii
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from feather_sglang.core.recording import VERSION
from feather_sglang.simulate.traces.lines import Line, TraceError


def header(path: Path, lines: Iterator[Line]) -> dict[str, int]:
    """The machine of a recording, from its first line.

    :raises TraceError: if it is none, or of another version.
    """
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path} is empty; expected a recording of --feather-record")
    found = first.fields.get("recording")
    if not isinstance(found, dict) or found.get("version") != VERSION or not isinstance(found.get("machine"), dict):
        raise first.wrong("this is no recording of this version", f'`{{"recording": {{"version": {VERSION}, ...}}}}`')
    machine: dict[str, int] = found["machine"]
    return machine


def call_of(line: Line) -> tuple[str, Any]:
    """The call of a line, and its arguments."""
    if len(line.fields) != 1:
        raise line.wrong("this is no call", "one call a line, as {call: arguments}")
    return next(iter(line.fields.items()))


def made(line: Line, make: Callable[..., Any], *args: Any) -> Any:
    """What ``make`` makes of a line.

    :raises TraceError: if the line is damaged.
    """
    try:
        return make(*args)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, binascii.Error) as error:
        raise line.wrong(
            f"the call is damaged ({type(error).__name__}: {error})", "a call as it was recorded"
        ) from None


def chunks_of(enqueued: Mapping[str, Any]) -> array[int]:
    """The hashes of the whole chunks of a request, each of one chunk."""
    hashes = array("q")
    hashes.frombytes(b64decode(enqueued["chunks"], validate=True))
    return hashes
