"""Bad input to ``feather``: one line that says what, what was expected, what to do; and nothing is started."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from feather_sglang.cli import main, server
from tests.waiting import PATIENCE


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*args: object, **kwargs: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr(server, "start", start)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main.main(list(argv)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("feather: error: ")
    assert err.count("\n") == 1
    return err


def test_a_command_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'sevre'; expected one of serve" in refusal(capsys, "sevre")


def test_a_model_folder_that_does_not_exist(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = str(tmp_path / "none")
    for option in (["--model-path", missing], [f"--model-path={missing}"], ["--model", missing]):
        assert f"{missing} does not exist: expected a folder" in refusal(capsys, "serve", *option)


def test_a_folder_that_holds_no_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "holds no model: expected a folder with config.json" in refusal(capsys, "serve", "--model", str(tmp_path))


def test_a_port_that_is_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        assert f"port {port} on 127.0.0.1 is in use" in refusal(capsys, "serve", "--port", port)


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1"])
def test_a_port_that_is_none(capsys: pytest.CaptureFixture[str], port: str) -> None:
    assert f"--port {port} is not a port: give a number" in refusal(capsys, "serve", f"--port={port}")


def test_an_option_without_its_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected one argument" in refusal(capsys, "serve", "--port")


def test_an_address_of_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    # 192.0.2.0/24 is reserved for documentation: it is nobody's.
    assert "give an address of this machine" in refusal(capsys, "serve", "--host", "192.0.2.1")


@pytest.mark.parametrize(
    ("content", "said"), [("port: [", "is not YAML"), ("- port", "holds a list"), ("port", "holds a str")]
)
def test_a_configuration_that_is_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(content)
    message = refusal(capsys, "serve", "--config", str(file))
    assert said in message
    assert "expected lines of `option: value`" in message


def test_a_configuration_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read (No such file" in refusal(capsys, "serve", "--config", "none.yaml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["--schedule-polcy", "fcfs"],
            "arguments: --schedule-polcy fcfs: did you mean --schedule-policy?",
        ),
        (["--feather-gate", "ucb7"], "expected one of never, static"),
    ],
)
def test_an_option_that_sglang_refuses(argv: list[str], said: str) -> None:
    command = [sys.executable, "-m", "feather_sglang.cli.main", "serve", "--port", str(server.free_port()), *argv]
    done = subprocess.run(command, env=server.quick_environment(), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    refused = [line for line in done.stderr.splitlines() if line.startswith("feather: ")]
    assert len(refused) == 1, done.stderr
    assert said in refused[0]
    assert "Traceback" not in done.stderr
