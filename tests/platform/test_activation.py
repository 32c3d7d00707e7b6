"""When the CPU platform serves unasked, and when it stands back."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch

import feather_sglang_cpu as cpu

PATH = "feather_sglang_cpu.platform.CpuPlatform"


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No accelerator, nobody else's platform, nothing set."""
    for name in ("SGLANG_PLATFORM", "SGLANG_USE_CPU_ENGINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    install(monkeypatch)


def install(monkeypatch: pytest.MonkeyPatch, *others: str) -> None:
    points = [EntryPoint(name, "some.module:activate", cpu.GROUP) for name in (cpu.NAME, *others)]
    monkeypatch.setattr(cpu, "entry_points", lambda group: points)


def find_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: "cuda")


def test_it_serves_where_nothing_else_would() -> None:
    assert cpu.activate() == PATH
    assert cpu.why_not() is None


def test_it_stands_back_for_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    find_an_accelerator(monkeypatch)
    assert cpu.activate() is None
    assert cpu.why_not() == "PyTorch finds an accelerator: cuda"


def test_it_stands_back_for_another_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "vendor")
    assert cpu.activate() is None
    assert cpu.why_not() == "another platform plugin is installed: vendor"


def test_it_stands_back_for_sglangs_cpu_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    assert cpu.activate() is None


def test_named_it_serves_whatever_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PLATFORM", cpu.NAME)
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    find_an_accelerator(monkeypatch)
    install(monkeypatch, "vendor")
    assert cpu.activate() == PATH


def test_importing_it_is_cheap() -> None:
    program = "import sys, feather_sglang_cpu; print(sorted({'torch', 'sglang'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"
