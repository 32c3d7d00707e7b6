"""``feather state``: what gates have learned, in the file of ``--feather-state``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feather_sglang.cli.errors import UsageError
from feather_sglang.cli.remote import Parser
from feather_sglang.core.gates import make_gate
from feather_sglang.core.settings import GATES
from feather_sglang.sglang import learned
from feather_sglang.sglang.learned import Learned, StateError

_TABLE_ROWS = 40


def main(argv: list[str]) -> int:
    """Show or forget; the exit status.

    :raises UsageError: for a file that is not there, or not one of these.
    """
    parser = Parser(prog="feather state", description="Show, or forget, what the gates of a server have learned.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="{show,reset}")
    for name, what in (("show", "print what was learned"), ("reset", "forget it")):
        command = commands.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")
        command.add_argument("file", type=Path, metavar="FILE")
        if name == "reset":
            command.add_argument("--gate", help="forget only what this gate learned")
    given = parser.parse_args(argv)
    return _reset(given.file, given.gate) if given.command == "reset" else _show(given.file)


def _show(path: Path) -> int:
    print("\n".join(described(_read(path))))
    return 0


def _reset(path: Path, gate: str | None) -> int:
    try:
        if gate is None:
            path.unlink()
            print(f"{path} is gone; the next server begins to learn anew.")
        else:
            found = _read(path)
            if gate not in found.gates:
                known = ", ".join(found.gates) or "none"
                raise UsageError(f"{path} holds nothing of the gate {gate!r}; expected one of {known}")
            del found.gates[gate]
            learned.write(path, found)
            print(f"{path} holds no more of the gate {gate}.")
    except OSError as error:
        raise UsageError(f"{path} cannot be reset: {error.strerror}; give the file of --feather-state") from None
    print("A server that runs with this file writes it again: start it anew, or reset after its end.")
    return 0


def _read(path: Path) -> Learned:
    try:
        found = learned.read(path)
    except StateError as error:
        raise UsageError(str(error)) from None
    if found is None:
        raise UsageError(f"there is no {path}; expected the file of a server's --feather-state")
    return found


def described(found: Learned) -> Iterator[str]:
    """A state file in lines for people."""
    if found.saved:
        yield f"saved              {found.saved}"
    for name, value in found.learned_on.items():
        yield f"{name.replace('_', ' '):<18} {value}"
    if not found.gates:
        yield "no gate has learned anything yet"
    for name, dump in found.gates.items():
        yield f"\ngate {name}"
        for label, value in _figures(name, dump).items():
            yield f"  {label:<24} {_number(value)}"
        for label, value in dump.items():
            if isinstance(value, Mapping) and value and all(isinstance(row, list) for row in value.values()):
                yield from _table(label, value)


def _figures(name: str, dump: Mapping[str, Any]) -> dict[str, Any]:
    """What a gate of this name says of itself once it has loaded the dump; the dump itself, if there is none."""
    if name in GATES:
        gate = make_gate(name)
        try:
            gate.load(dump)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            return {"cannot be loaded": str(error)}
        dump = gate.state()
    return dict(_flat(dump))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield prefix + str(name), value


def _table(label: str, rows: Mapping[str, list[Any]]) -> Iterator[str]:
    yield f"  {label}: {len(rows)} entries"
    for key, row in list(rows.items())[:_TABLE_ROWS]:
        yield f"    {key:<16} " + "  ".join(f"{_number(value):>10}" for value in row)
    if len(rows) > _TABLE_ROWS:
        yield f"    ... {len(rows) - _TABLE_ROWS} more"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
