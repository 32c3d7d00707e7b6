"""``feather bench serve`` on real servers: interrupted in the second arm, it keeps the first and leaves none."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow


def heed_interrupts() -> None:
    """As in a terminal: what a shell starts in the background ignores Ctrl-C, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_interrupted(tmp_path: Path) -> None:
    result, picture = tmp_path / "result.json", tmp_path / "result.svg"
    command = [sys.executable, "-m", "feather_sglang.cli.main", "bench", "serve", "--arms", "feather,fcfs"]
    size = ["--families", "2", "--per-family", "2", "--output-tokens", "2"]
    with (tmp_path / "log").open("wb") as output:
        process = subprocess.Popen(
            [*command, *size, "--json", str(result), "--svg", str(picture)],
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=heed_interrupts,
        )
    started: list[psutil.Process] = []
    try:
        said = (tmp_path / "log").read_text
        until(lambda: "fcfs: starting a server" in said() or process.poll() is not None, said)
        # Into the server's own start: it has started processes itself.
        until(lambda: len(psutil.Process(process.pid).children(recursive=True)) > 1 or process.poll() is not None, said)
        assert process.poll() is None, said()
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        _, left = psutil.wait_procs(started, timeout=PATIENCE)
        assert left == []
    finally:
        process.kill()
    log = said()
    assert "The capital of France is Paris." in log
    assert "interrupted at fcfs; no server of ours is left" in log
    assert "4 / 0 / " in log
    assert "<svg" in picture.read_text()
    report = json.loads(result.read_text())
    assert (report["complete"], report["stopped"]) == (False, "interrupted at fcfs; no server of ours is left")
    arms = report["arms"]
    assert list(arms) == ["feather"]
    feather = arms["feather"]
    assert feather["cached_tokens"] >= 0.99 * feather["cacheable_tokens"] > 0
    assert 3 <= feather["steps"] <= 12  # at the most each by itself: its prefill, a decode step, one in flight too many
