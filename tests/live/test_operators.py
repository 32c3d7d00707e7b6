"""What operators have of a running server: metrics, log, ``feather top``, ``feather set``, the state file."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from feather_sglang.bench.tiny_llama import write_model
from feather_sglang.cli import server
from feather_sglang.sglang import learned
from feather_sglang.sglang.metrics import METRICS, PREFIX
from tests.harness.prompts import Tokens, interleaved
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "feather.json"
FEATHER = [sys.executable, "-m", "feather_sglang.cli.main"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operators")


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[server.Server]:
    """A server that has answered two families of a namespace each."""
    args = ["--model-path", str(write_model(folder / "tiny")), "--load-format", "dummy", "--skip-tokenizer-init"]
    args += ["--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"]
    args += ["--max-total-tokens", "20000", "--max-running-requests", "8", "--decode-log-interval", "4"]
    args += ["--enable-metrics", "--schedule-policy", "feather", "--feather-gate", "ucb"]
    args += ["--feather-log", str(folder / "decisions"), "--feather-state", str(folder / "state")]
    args += ["--feather-state-every", "1000000"]  # the last test sees what the end saves
    with server.running(args, log=folder / "log", env={"SGLANG_PLATFORM": "feather_cpu"}) as running:
        prompts = interleaved(Tokens().families(4, 6, 512, 40))
        # In one piece, so that siblings are there while the first of them is computed, however fast that is.
        generate(running.url, prompts, ["" if i % 2 else "a-secret-salt" for i in range(len(prompts))])
        yield running


def generate(url: str, prompts: list[list[int]], salts: list[str] | None = None) -> None:
    body = {"input_ids": prompts, "sampling_params": {"max_new_tokens": 24, "ignore_eos": True}, "cache_salt": salts}
    request = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        assert [each["meta_info"]["completion_tokens"] for each in json.load(answer)] == [24] * len(prompts)


def feather(*argv: str) -> str:
    done = subprocess.run([*FEATHER, *argv], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def scrape(url: str) -> dict[str, Any]:
    """The policy's metrics, by name as a query names them: a list of (labels, value)."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(PREFIX):
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def settled(url: str) -> dict[str, Any]:
    """The metrics once SGLang has written them after the last request."""
    idle = lambda: scrape(url).get(f"{PREFIX}running", [({}, 1)])[0][1] == 0  # noqa: E731
    until(idle, lambda: scrape(url), every=0.2)
    return scrape(url)


def value(found: dict[str, Any], name: str, **labels: str) -> float:
    (only,) = [v for have, v in found[PREFIX + name] if labels.items() <= have.items()]
    return float(only)


def test_the_metrics_are_what_happened(served: server.Server) -> None:
    found = settled(served.url)
    assert value(found, "admitted_total") == value(found, "wait_seconds_count", prefix="reused") + value(
        found, "wait_seconds_count", prefix="computed"
    )
    assert value(found, "admitted_total") == 24
    assert value(found, "prompt_tokens_total", source="reused") + value(
        found, "prompt_tokens_total", source="computed"
    ) == 24 * (512 + 40)
    assert value(found, "prompt_tokens_total", source="reused") >= 16 * 512  # of 24, four families in two namespaces
    assert value(found, "barrier_waits_total") > 0
    assert value(found, "gate_decisions_total", answer="all") > 0
    assert value(found, "reward") > 0
    assert value(found, "gate_value", value="adds") > 0
    assert value(found, "policy_seconds_count") > 0
    assert value(found, "policy_seconds_sum") > 0
    assert value(found, "waiting") == value(found, "held") == value(found, "distinct_kv_tokens") == 0
    assert value(found, "max_wait_tokens") > 0
    assert {labels["reason"]: v for labels, v in found[f"{PREFIX}fallbacks_total"]}.keys() >= {"gave_up", "log_off"}
    assert all(v == 0 for _, v in found[f"{PREFIX}fallbacks_total"])
    assert {labels["namespace"] for labels, _ in found[f"{PREFIX}longest_wait_seconds"]} == {"default", "n1"}
    assert "secret" not in json.dumps(found)


def test_every_metric_says_what_it_means(served: server.Server) -> None:
    with urllib.request.urlopen(f"{served.url}/metrics", timeout=PATIENCE) as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    for metric in METRICS:
        assert families[PREFIX + metric.name].samples, metric.name
    assert all(len(metric.help) > 20 for metric in METRICS)


def test_the_dashboard_asks_for_metrics_that_exist(served: server.Server) -> None:
    there = settled(served.url).keys()
    asked = set(re.findall(rf"{PREFIX}\w+", DASHBOARD.read_text()))
    assert asked
    assert asked <= there


def test_the_batch_lines_say_held_and_stops(served: server.Server) -> None:
    assert served.log is not None
    text = served.log.read_text()
    for line in ("Prefill batch", "Decode batch"):
        lines = [found for found in text.splitlines() if line in found]
        assert lines
        assert all(re.search(r", #held: \d+, #stops: \d+$", found) for found in lines)
    assert re.search(r"#held: [1-9]", text)


def test_the_decision_log_holds_every_admission_and_no_secret(served: server.Server, folder: Path) -> None:
    text = (folder / "decisions").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert sum(len(line["cached"]) for line in lines) >= 24
    assert any(line["held_for"] for line in lines)
    assert "secret" not in text


def test_top_shows_one_frame_in_a_pipe(served: server.Server) -> None:
    shown = feather("top", "--url", served.url, "--once")
    assert "\x1b" not in shown
    for part in ("order missing", "gate ucb", "batch", "queue", "passes", "waits", "cached", served.url):
        assert part in shown, shown


def test_top_lives_in_a_terminal_and_leaves_it_as_it_was(served: server.Server) -> None:
    parent, child = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "90", "LINES": "24"}
    command = [*FEATHER, "top", "--url", served.url, "--interval", "0.3"]
    heeds_interrupts = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 - not so in the background
    process = subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env=environment, preexec_fn=heeds_interrupts
    )
    os.close(child)
    shown = b""
    try:
        end = time.monotonic() + PATIENCE
        while shown.count(b"\x1b[H") < 3 and time.monotonic() < end:
            if select.select([parent], [], [], 1)[0]:
                shown += os.read(parent, 65536)
        process.send_signal(signal.SIGINT)
        while time.monotonic() < end and select.select([parent], [], [], PATIENCE)[0]:
            try:
                more = os.read(parent, 65536)
            except OSError:  # nobody writes any more
                break
            shown += more
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        os.close(parent)
    text = shown.decode()
    assert text.startswith("\x1b[?1049h\x1b[?25l")
    assert text.endswith("\x1b[?25h\x1b[?1049l")
    frames = text.split("\x1b[H")[1:]
    assert len(frames) >= 3
    for drawn in frames:
        lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn).split("\r\n")
        assert len(lines) <= 24
        assert all(len(line) <= 90 for line in lines)
    assert "admitted/s" in frames[-1]


def test_set_changes_it_and_says_so(served: server.Server) -> None:
    said = feather("set", "--url", served.url, "gate=never", "order=held", "aging=0.5", "barrier-min=128")
    assert said == "gate ucb -> never, order missing -> held, aging 0.2 -> 0.5, barrier_min 256 -> 128\n"
    assert feather("set", "--url", served.url, "max-wait=90") == "max_wait 60.0 -> 90.0\n"
    generate(served.url, [Tokens().take(300)])
    assert "order held   gate never" in feather("top", "--url", served.url, "--once")
    assert feather("set", "--url", served.url, "gate=ucb", "order=missing") == (
        "gate never -> ucb, order held -> missing\n"
    )


def test_what_cannot_be_changed_is_one_line(served: server.Server) -> None:
    for change, part in (("gate=foo", "gate is 'foo'; expected one of"), ("chunk_size=8", "cannot be changed")):
        done = subprocess.run([*FEATHER, "set", "--url", served.url, change], capture_output=True, text=True)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
        assert part in done.stderr
    done = subprocess.run([*FEATHER, "set", "--url", served.url, "aging=-1"], capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_what_was_learned_is_saved_at_the_end(served: server.Server, folder: Path) -> None:
    """The last test: it ends the server."""
    assert not (folder / "state").exists()
    served.stop(grace=PATIENCE)
    found = learned.read(folder / "state")
    assert found is not None
    assert found.gates["ucb"]["table"]
    assert found.learned_on["device"] == "cpu"
    assert found.learned_on["attention_backend"] == "torch_native"
    assert "torch_native" in feather("state", "show", str(folder / "state"))
    assert "is gone" in feather("state", "reset", str(folder / "state"))
