"""``feather serve``: SGLang's server with the feather policy, and a model of its own where none is named.

This process stays small: it checks the arguments, starts the server (``launch``) in another, says when it is ready, and
ends it.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

from feather_sglang.cli import server
from feather_sglang.cli.arguments import DEFAULT_HOST, DEFAULT_PORT, Arguments

_HELP = f"""usage: feather serve [--model-path MODEL] [SGLang's options]

Serves MODEL (a folder or a Hugging Face id; by default the embedded SmolLM2-135M-Instruct) with SGLang and
--schedule-policy feather, on {DEFAULT_HOST}:{DEFAULT_PORT}. Where PyTorch finds no accelerator it serves on the CPU.

Every option of SGLang is passed on and wins over the defaults here. `python -m sglang.launch_server --help` lists
them, with those of feather (--feather-*)."""


def main(argv: list[str]) -> int:
    """Serve until interrupted; the exit status.

    :raises UsageError: before anything is started, for a model, port or configuration that cannot be served.
    """
    if "-h" in argv or "--help" in argv:
        print(_HELP)
        return 0
    arguments = Arguments.read(argv)
    arguments.check()
    signal.signal(signal.SIGTERM, _interrupt)
    print(f"feather: starting SGLang on {arguments.host}:{arguments.port} ...", flush=True)
    running = server.start(argv, host=arguments.host, port=arguments.port, program=("-m", "feather_sglang.cli.launch"))
    try:
        running.wait_ready(timeout=None)
        print(_ready(running.url), flush=True)
        return running.wait()
    except server.ServerFailed as failure:
        if failure.status != 2:  # bad input, and it said which
            print(f"feather: error: {failure} before it was ready; its output above says why", file=sys.stderr)
        return failure.status or 1
    except KeyboardInterrupt:
        print("feather: ending the server (again to end it at once) ...", flush=True)
        return 0
    finally:
        running.stop()


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _ready(url: str) -> str:
    return f"""
feather: ready at {url}, for example

    curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d \\
        '{{"messages": [{{"role": "user", "content": "What is the capital of France?"}}], "temperature": 0}}'
"""
