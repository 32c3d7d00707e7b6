"""What gates have learned, in a file that outlives the server: ``--feather-state FILE``.

JSON: the format's name, what it was learned on, and one object for each gate. What was learned on another model, device
or attention backend would mislead a gate, so it is refused.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = "feather-state/1"


class StateError(ValueError):
    """A state file that cannot be used. The message is one line: what is wrong, what was expected, what to do."""


@dataclass
class Learned:
    """The contents of a state file."""

    learned_on: dict[str, str]
    """What the figures depend on: ``model``, ``device``, ``attention_backend``."""
    gates: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By the name of a gate: its ``dump``."""
    saved: str = ""
    """When, for people."""


def read(path: Path) -> Learned | None:
    """The contents of a file; None: there is none yet.

    :raises StateError: if there is one and it is not a state file of this version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(f"the state file {path} cannot be read: {error}. {_ADVICE}") from None
    try:
        contents = json.loads(text)
    except ValueError as error:
        raise StateError(f"the state file {path} is damaged: {error}. {_ADVICE}") from None
    format = contents.get("format") if isinstance(contents, dict) else None
    if format != FORMAT:
        raise StateError(f"the state file {path} has the format {format!r}; expected {FORMAT!r}. {_ADVICE}")
    learned_on, gates = contents.get("learned_on"), contents.get("gates")
    if not _is_of(learned_on, str) or not _is_of(gates, dict):
        raise StateError(f"the state file {path} is damaged: no learned_on, or no gates. {_ADVICE}")
    return Learned(learned_on, gates, str(contents.get("saved", "")))


def check(path: Path, learned: Learned, here: Mapping[str, str]) -> None:
    """Refuse what was learned elsewhere.

    :param here: as ``Learned.learned_on``, as far as it is known.
    :raises StateError: if they differ.
    """
    for name, value in here.items():
        if learned.learned_on.get(name) != value:
            raise StateError(
                f"the state file {path} was learned on {name.replace('_', ' ')} {learned.learned_on.get(name)!r}, and "
                f"this server runs {value!r}. Give another file, or forget it: feather state reset {path}"
            )


def write(path: Path, learned: Learned) -> None:
    """Replace the file as a whole: a reader, or a crash, sees the old one or the new one.

    :raises OSError: if it cannot be written; the old one stays.
    """
    contents = {
        "format": FORMAT,
        "saved": learned.saved,
        "learned_on": learned.learned_on,
        "gates": learned.gates,
    }
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(contents, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def check_writable(path: Path) -> None:
    """Find out before anything is learned whether it can be kept.

    :raises StateError: if the folder is not there, or not writable.
    """
    if not path.parent.is_dir():
        raise StateError(f"the state file {path} has no folder to be in. Make {path.parent}, or give another file.")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise StateError(f"the state file {path} cannot be written. Give a file in a folder that can.")


_ADVICE = "Give another file, or remove it."


def _is_of(contents: Any, kind: type) -> bool:
    return isinstance(contents, dict) and all(isinstance(value, kind) for value in contents.values())
