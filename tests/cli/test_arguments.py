"""Whose option wins: the command line, then ``--config``, then the defaults of ``feather serve``."""

from __future__ import annotations

from pathlib import Path

import pytest

from feather_sglang.cli import launch
from feather_sglang.cli.arguments import DEFAULT_HOST, DEFAULT_PORT, Arguments
from feather_sglang.cli.server import free_port

DEFAULTS = {"schedule-policy": "feather", "device": "cpu", "sleep-on-idle": None}


def test_nothing_given() -> None:
    arguments = Arguments.read([])
    assert (arguments.host, arguments.port, arguments.model_path) == (DEFAULT_HOST, DEFAULT_PORT, None)
    assert arguments.with_defaults(DEFAULTS) == ["--schedule-policy", "feather", "--device", "cpu", "--sleep-on-idle"]


def test_the_command_line_wins() -> None:
    argv = ["--schedule-policy=lpm", "--sleep_on_idle", "--tp", "2", "--port", "1234"]
    arguments = Arguments.read(argv)
    assert arguments.port == 1234
    assert arguments.with_defaults(DEFAULTS) == ["--device", "cpu", *argv]


def test_a_configuration_wins_over_the_defaults_and_loses_to_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("schedule_policy: lpm\nport: 1234\nhost: localhost\nmodel-path: org/name\n")
    argv = ["--config", str(file), "--port", "4321"]
    arguments = Arguments.read(argv)
    assert (arguments.host, arguments.port, arguments.model_path) == ("localhost", 4321, "org/name")
    assert arguments.with_defaults(DEFAULTS) == ["--device", "cpu", "--sleep-on-idle", *argv]


def test_an_empty_configuration_gives_nothing(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("# nothing yet\n")
    assert Arguments.read(["--config", str(file)]).port == DEFAULT_PORT


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "gpt2", "s3://bucket/model", "hf.co-mirror/x_y"])
def test_ids_and_addresses_are_left_to_sglang(name: str) -> None:
    Arguments.read(["--model-path", name, "--port", str(free_port())]).check()


def test_a_file_is_left_to_sglang(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    Arguments.read(["--model-path", str(file), "--port", str(free_port())]).check()


def test_another_device_or_platform_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    assert not launch.serve_on_cpu("cuda")
    assert launch.serve_on_cpu("cpu")
    monkeypatch.setenv("SGLANG_PLATFORM", "another")
    assert not launch.serve_on_cpu("cpu")
    monkeypatch.setenv("SGLANG_PLATFORM", "feather_cpu")
    assert launch.serve_on_cpu(None)
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    assert not launch.serve_on_cpu("cpu")


def test_attention_on_the_cpu(tmp_path: Path) -> None:
    def backend(*argv: str, config: str | None = None) -> str:
        if config is not None:
            (tmp_path / "config.json").write_text(config)
            argv = ("--model-path", str(tmp_path), *argv)
        return launch.attention_on_cpu(Arguments.read(list(argv)))

    assert backend() == "feather-cascade"
    assert backend(config='{"model_type": "llama", "sliding_window": null}') == "feather-cascade"
    assert backend(config='{"model_type": "mistral", "sliding_window": 4096}') == "torch_native"
    assert backend(config="[]") == "torch_native"
    assert backend("--model-path", "some/model-of-a-hub") == "torch_native"
    assert backend("--speculative-algorithm", "NGRAM") == "torch_native"
