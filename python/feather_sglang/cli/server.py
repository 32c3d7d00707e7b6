"""A server in processes of its own: start it, wait until it answers, end it and everything it started.

Used by ``feather serve``, the benches and the tests; knows nothing of SGLang but its command line and ``/model_info``.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from feather_sglang.cli.model import cache_folder

LAUNCHER = "sglang.launch_server"


class ServerFailed(Exception):
    """The server ended, or did not answer in time; the message holds the end of its log, where there is one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """Its exit status; None: it was still running."""


class Server:
    """A server process, in a session of its own so that it and all it started can be ended together."""

    def __init__(
        self, process: subprocess.Popen[bytes], url: str, log: Path | None, port: socket.socket | None = None
    ) -> None:
        self._process = process
        self._port = port
        """Holds a port for it until it ends."""
        self.url = url
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout: float | None = 600.0) -> None:
        """Return as soon as it answers; ``timeout`` in seconds.

        Polls ``/model_info``: ``/health`` would run a generation.

        :raises ServerFailed: at once when the process ends, or after ``timeout``.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not _answers(f"{self.url}/model_info"):
            if (status := self._process.poll()) is not None:
                raise ServerFailed(f"the server ended with status {status}{self._log_end()}", status)
            if deadline is not None and time.monotonic() > deadline:
                raise ServerFailed(f"the server did not answer within {timeout:.0f} s{self._log_end()}")
            time.sleep(0.2)

    def wait(self) -> int:
        """Wait until it ends by itself; its exit status."""
        return self._process.wait()

    def stop(self, grace: float = 20.0) -> None:
        """Ask it to end (it finishes the requests it has), and after ``grace`` seconds end all its processes."""
        try:
            if self._process.poll() is None:
                self._process.terminate()
                self._process.wait(grace)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()

    def kill(self) -> None:
        """End all its processes now; what is left of them after its own end, too."""
        try:
            os.killpg(self.pid, signal.SIGKILL)  # its process id is its session's and group's
        except ProcessLookupError:
            pass
        self._process.wait()
        if self._port is not None:
            self._port.close()

    def _log_end(self, lines: int = 30) -> str:
        if self.log is None:
            return ""
        return f"; its log, {self.log}, ends:\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def start(
    args: Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    log: Path | None = None,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", LAUNCHER),
) -> Server:
    """Start ``python program args --host --port`` and return at once.

    ``port`` None: a free one. ``log``: the file its output goes to; None: this process' own output. ``env``: its whole
    environment; None: this process' own. It ends with the thread that calls this, whatever ends that.
    """
    held = None
    if port is None:
        held = _hold(host)
        port = int(held.getsockname()[1])
    command = [sys.executable, *program, *args, "--host", host, "--port", str(port)]
    output = log.open("wb") if log else None
    try:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    finally:
        if output:
            output.close()
    return Server(process, url(host, port, tls="--ssl-certfile" in args), log, held)


@contextmanager
def running(
    args: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    port: int | None = None,
    timeout: float = 600.0,
) -> Iterator[Server]:
    """A server on 127.0.0.1 that answers, ended with the context. For benches and tests: starts quickly, stops quickly.

    ``env`` is added to ``quick_environment()``.

    :raises ServerFailed: if it ends or does not answer in ``timeout`` seconds.
    """
    server = start(
        [*args, "--skip-server-warmup", "--sleep-on-idle"],
        port=port,
        log=log,
        env={**quick_environment(), **(env or {})},
    )
    try:
        server.wait_ready(timeout)
        yield server
    finally:
        server.kill()  # an orderly end takes ten seconds


def quick_environment() -> dict[str, str]:
    """This process' environment, with what makes a server on a small machine start and step fast.

    Byte code is kept (imports are most of the start), PyTorch spins no second thread on a busy core, nothing is looked
    up on the network, and a server that fails does not wait a minute for a device's core dump.
    """
    environment = {
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPYCACHEPREFIX": str(cache_folder() / "pycache"),
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH_WAIT_SECS": "0",
    } | os.environ
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listened on a moment ago."""
    with _hold(host) as probe:
        port: int = probe.getsockname()[1]
        return port


def _hold(host: str) -> socket.socket:
    """A socket with a free port, which is given to nobody else while it is open: a server takes long until it listens.

    Servers may listen beside it: they reuse addresses, and it does not listen. That is so on Linux.
    """
    probe = socket.socket(_family(host))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, sys.platform == "linux")
    probe.bind((host, 0))
    return probe


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now.

    :raises OSError: if ``host`` is not an address of this machine.
    """
    with socket.socket(_family(host)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if not isinstance(error, PermissionError) and error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def url(host: str, port: int, tls: bool = False) -> str:
    """Where a client on this machine finds a server that listens on ``host``."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"{'https' if tls else 'http'}://{reachable}:{port}"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _answers(address: str) -> bool:
    try:
        with _direct().open(address, timeout=5):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500  # it wants an API key, say
    except OSError:
        return False


@functools.cache
def _direct() -> urllib.request.OpenerDirector:
    """The server is this process' own: behind no proxy, and its certificate perhaps self-signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))


_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """In the child, on Linux: be killed when the parent ends, even if that was killed itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
