"""The console script ``feather``: finds the subcommand, and turns bad input into one line."""

from __future__ import annotations

import sys
from importlib import import_module

from feather_sglang import __version__
from feather_sglang.cli.errors import UsageError

# Subcommand: (module with main(argv), what it does).
COMMANDS = {
    "serve": ("feather_sglang.cli.serve", "serve a model with SGLang and the feather policy"),
    "top": ("feather_sglang.cli.top", "watch a running server"),
    "set": ("feather_sglang.cli.change", "change gate, order, ageing or barrier of a running server"),
    "state": ("feather_sglang.cli.state", "show or forget what the gate has learned"),
    "doctor": ("feather_sglang.cli.doctor", "say what is installed, whether it fits, and what mends it"),
    "patch": ("feather_sglang.cli.patch", "put the policy into SGLang's own files, or take it out again"),
    "bench": ("feather_sglang.bench.main", "measure it, on this machine"),
    "simulate": ("feather_sglang.bench.simulate", "replay recorded traffic through every policy, on modelled times"),
    "calibrate": ("feather_sglang.bench.calibrate", "fit step times for feather simulate to a server's recording"),
    "report": ("feather_sglang.bench.page", "one page of HTML from the JSON of benches and simulations"),
    "model": ("feather_sglang.cli.model", "print the folder of the embedded model"),
}


def main(argv: list[str] | None = None) -> int:
    """Run ``feather argv``; the exit status: 0 done, 1 something is wrong, 2 bad input, 130 interrupted."""
    command, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if command in ("-h", "--help"):
        print(_help())
        return 0
    if command in ("-V", "--version"):
        print(f"feather-sglang {__version__}")
        return 0
    try:
        if command not in COMMANDS:
            raise UsageError(
                f"there is no command {command!r}; expected one of {', '.join(COMMANDS)}: `feather --help`"
            )
        status: int = import_module(COMMANDS[command][0]).main(rest)
    except UsageError as error:
        print(f"feather: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


def _help() -> str:
    lines = "\n".join(f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items())
    return f"usage: feather COMMAND [options]\n\ncommands:\n{lines}\n\n`feather COMMAND --help` explains its options."


if __name__ == "__main__":
    sys.exit(main())
