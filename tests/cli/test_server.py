"""Starting and ending a process tree, on a small program in the place of SGLang's launcher."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from feather_sglang.cli import server
from tests.waiting import PATIENCE, until

# Answers /model_info, beside a child that would outlive it.
SERVER = """
import http.server, pathlib, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("child").write_text(str(child.pid))
port = int(sys.argv[sys.argv.index("--port") + 1])
if "--fail" in sys.argv:
    sys.exit("no such model")
if "--mute" in sys.argv:
    child.wait()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(401 if "--key" in sys.argv else 200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "tiny_server.py").write_text(SERVER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return ["-m", "tiny_server"]


def alive(pid: int) -> bool:
    try:
        status: str = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return False
    return status != psutil.STATUS_ZOMBIE


def assert_ends(pid: int) -> None:
    until(lambda: not alive(pid), lambda: f"process {pid} is left", every=0.01)


@pytest.mark.parametrize("argv", [[], ["--key"]])
def test_it_is_ready_and_ends_with_all_it_started(program: list[str], tmp_path: Path, argv: list[str]) -> None:
    running = server.start(argv, log=tmp_path / "log", program=program)
    running.wait_ready(PATIENCE)
    child = int(Path("child").read_text())
    assert alive(child)
    running.stop()
    assert_ends(running.pid)
    assert_ends(child)
    running.stop()  # again is harmless


def test_a_proxy_is_not_asked(program: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    running = server.start([], log=tmp_path / "log", program=program)
    running.wait_ready(PATIENCE)
    running.kill()


def test_its_port_is_given_to_nobody_else_until_it_listens(program: list[str], tmp_path: Path) -> None:
    running = server.start(["--mute"], log=tmp_path / "log", program=program)
    port = int(running.url.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"), socket.socket() as other:
        other.bind(("127.0.0.1", port))
    assert server.is_free("127.0.0.1", port), "a server may have it"
    running.kill()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_its_end_is_noticed_at_once(program: list[str], tmp_path: Path) -> None:
    running = server.start(["--fail"], log=tmp_path / "log", program=program)
    with pytest.raises(server.ServerFailed, match=r"(?s)status 1.*no such model") as failure:
        running.wait_ready(PATIENCE)
    assert failure.value.status == 1
    running.kill()
    assert_ends(int(Path("child").read_text()))


def test_one_that_does_not_answer(program: list[str], tmp_path: Path) -> None:
    running = server.start(["--mute"], log=tmp_path / "log", program=program)
    with pytest.raises(server.ServerFailed, match="did not answer within 0 s"):
        running.wait_ready(0)
    running.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="a parent's death is signalled on Linux only")
def test_it_ends_when_its_parent_is_killed(program: list[str]) -> None:
    starter = f"""
import time
from feather_sglang.cli import server
running = server.start([], program={program!r})
running.wait_ready()
print(running.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert_ends(pid)
    os.kill(int(Path("child").read_text()), signal.SIGKILL)  # SGLang's own children see to themselves


def test_where_a_client_finds_it() -> None:
    assert server.url("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert server.url("::", 1) == "http://[::1]:1"
    assert server.url("localhost", 1, tls=True) == "https://localhost:1"
