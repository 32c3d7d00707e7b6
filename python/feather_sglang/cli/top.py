"""``feather top``: a running server at a glance, once a second, from its ``/server_info``."""

from __future__ import annotations

import os
import shutil
import sys
import time

from feather_sglang.cli.errors import UsageError
from feather_sglang.cli.frame import Snapshot, frame
from feather_sglang.cli.remote import Parser, Remote, add_server, policy_states

_HOME, _REST_OF_LINE, _BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The screen that programs borrow, without a cursor; and back."""

_PLAIN_SIZE = (100, 60)


def main(argv: list[str]) -> int:
    """Show frames until interrupted; the exit status.

    :raises UsageError: if the server does not answer, or has another policy.
    """
    parser = Parser(prog="feather top", description="A live view of a server with the feather policy.")
    add_server(parser)
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two frames; default: %(default)s")
    parser.add_argument("--once", action="store_true", help="print one frame, for pipes")
    given = parser.parse_args(argv)
    if not 0.1 <= given.interval <= 3600:
        raise UsageError(f"--interval is {given.interval}; expected 0.1 to 3600 seconds")
    server = Remote(given.url, given.api_key)
    now = look(server)
    terminal = sys.stdout.isatty()
    colour = terminal and "NO_COLOR" not in os.environ
    if given.once or not terminal:
        size = shutil.get_terminal_size(_PLAIN_SIZE)
        print("\n".join(frame(None, now, width=size.columns, height=_PLAIN_SIZE[1], colour=colour)))
        return 0
    return _live(server, now, given.interval, colour)


def look(server: Remote) -> Snapshot:
    """:raises UsageError: if the server does not answer, or has another policy."""
    info = server.server_info()
    model = info.get("served_model_name") or info.get("model_path") or "?"
    about = {"url": server.url, "model": str(model).rstrip("/").rsplit("/", 1)[-1], "sglang": str(info.get("version"))}
    return Snapshot(time.monotonic(), about, policy_states(info, server.url))


def _live(server: Remote, now: Snapshot, interval: float, colour: bool) -> int:
    before: Snapshot | None = None
    lost: str | None = None
    sys.stdout.write(_ENTER)
    try:
        while True:
            _draw(before, now, lost, colour)
            time.sleep(interval)
            try:
                before, now, lost = now, look(server), None
            except UsageError as error:
                lost = str(error)
    except KeyboardInterrupt:
        return 0
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _draw(before: Snapshot | None, now: Snapshot, lost: str | None, colour: bool) -> None:
    size = shutil.get_terminal_size(_PLAIN_SIZE)
    lines = frame(before, now, width=size.columns, height=size.lines, colour=colour, lost=lost)
    text = "".join(f"{line}{_REST_OF_LINE}\n" for line in lines).removesuffix("\n")
    sys.stdout.write(_HOME + text + _BELOW)
    sys.stdout.flush()
