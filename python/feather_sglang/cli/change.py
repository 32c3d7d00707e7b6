"""``feather set``: another gate, order, ageing, barrier or bound on a running server, or no policy at all."""

from __future__ import annotations

from typing import Any

from feather_sglang.cli.errors import UsageError
from feather_sglang.cli.remote import Parser, Remote, add_server
from feather_sglang.sglang.changes import CHANGEABLE, to_wire
from feather_sglang.sglang.options import OptionError


def main(argv: list[str]) -> int:
    """Change what is asked for, on all ranks between the same two passes; the exit status.

    :raises UsageError: for a value that is not good, or a server that does not answer.
    """
    parser = Parser(
        prog="feather set",
        description="Change options of the policy while the server runs. A change lasts until the server ends.",
        epilog="options: " + ", ".join(f"{name}={flag.expects}" for name, flag in CHANGEABLE.items()),
    )
    add_server(parser)
    parser.add_argument("changes", nargs="+", metavar="OPTION=VALUE")
    given = parser.parse_args(argv)
    texts = dict(_split(change) for change in given.changes)
    try:
        wire = to_wire(texts)
    except OptionError as error:
        raise UsageError(str(error)) from None
    server = Remote(given.url, given.api_key)
    before = server.states()
    reasons = [state["reason"] for state in before if state["policy"] != "feather"]
    if reasons and "policy" not in texts:
        raise UsageError(f"the policy is not at work in {given.url} ({reasons[0]}); nothing was changed")
    if not all(server.change(wire)):
        raise UsageError(f"{given.url} refused; its log says why (feather: not changed: ...)")
    for i, (old, new) in enumerate(zip(before, server.states(), strict=True)):
        rank = f"rank {i}: " if len(before) > 1 else ""
        print(rank + ", ".join(_said(name, old, new) for name in texts))
    return 0


def _split(change: str) -> tuple[str, str]:
    name, equals, text = change.partition("=")
    if not equals:
        raise UsageError(f"{change!r} changes nothing; expected OPTION=VALUE, such as gate=never")
    return name.removeprefix("--feather-").replace("-", "_"), text


def _said(name: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    return f"{name} {old.get(name)} -> {new.get(name)}"
