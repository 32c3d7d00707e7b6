"""Bad input to ``feather bench``: one line, and nothing is started."""

from __future__ import annotations

import pytest

from feather_sglang.bench import picture
from feather_sglang.cli import main, server


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["sreve"], "there is no bench 'sreve'; expected one of"),
        (["serve", "--arms", "fcfs,lifo"], "there is no arm 'lifo'; expected some of fcfs,"),
        (["serve", "--arms", "fcfs,fcfs"], "name each arm once"),
        (["serve", "--json", "/none/such/demo.json"], "there is no folder /none/such"),
        (["serve", "--model-path", "/none/such"], "/none/such does not exist: expected a folder"),
        (["serve", "--arms", "feather@"], "there is no arm 'feather@'"),
        (["serve", "--arms", "policies,lpm"], "name each arm once"),
        (["serve", "--families", "8,x"], "--families: invalid list of whole numbers value: '8,x'"),
        (["serve", "--rate", "0"], "--rate 0: give more than 0"),
        (["serve", "--rate", "1", "--concurrency", "8"], "--rate and --concurrency: give one of them"),
        (["serve", "--interleaved"], "--interleaved goes with --data PATH"),
        (["serve", "--context", "4096"], "--context goes with --data PATH"),
        (["serve", "--data", "/none/such"], "--data /none/such does not exist: expected a Mooncake trace"),
        (["serve", "--base-url", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1"),
        (["serve", "--base-url", "http://127.0.0.1:1", "--tp", "2"], "--tp is an option of servers that are started"),
    ],
)
def test_one_line(
    argv: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*args: object, **kwargs: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr(server, "start", start)
    assert main.main(["bench", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("feather: error: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_no_matplotlib(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    assert main.main(["bench", "serve", "--png", "demo.png"]) == 2
    assert "needs matplotlib: `pip install matplotlib`" in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["bench"]) == 0
    assert "serve" in capsys.readouterr().out
