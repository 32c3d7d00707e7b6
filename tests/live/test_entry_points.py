"""Each way into SGLang serves with the policy: ``sglang.launch_server``, ``sglang serve``, ``Engine``."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from feather_sglang.bench.tiny_llama import write_model
from feather_sglang.cli import model, server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

ON_CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"]
PLATFORM = {"SGLANG_PLATFORM": "feather_cpu"}


def feather_state(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/server_info", timeout=PATIENCE) as answer:
        state: dict[str, Any] = json.load(answer)["internal_states"][0]["feather"]
        return state


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Server]:
    """``python -m sglang.launch_server`` on the embedded model."""
    args = ["--model-path", str(model.embedded_model()), *ON_CPU, "--max-total-tokens", "60000"]
    log = tmp_path_factory.mktemp("launched") / "log"
    with server.running([*args, "--schedule-policy", "feather"], log=log, env=PLATFORM) as running:
        yield running


def test_the_start_line_says_what_is_at_work(launched: server.Server) -> None:
    assert launched.log is not None
    lines = [line for line in launched.log.read_text().splitlines() if "policy=feather" in line]
    assert len(lines) == 1
    assert all(word in lines[0] for word in ("order=missing", "gate=never", "chunk=64", "ageing=", "barrier=256"))


def test_an_openai_client_is_answered(launched: server.Server) -> None:
    client = openai.OpenAI(base_url=f"{launched.url}/v1", api_key="none")
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    choice = client.chat.completions.create(model="default", messages=question, temperature=0, max_tokens=16)
    assert "Paris" in (choice.choices[0].message.content or "")


def test_the_benchmark_of_sglang_runs(launched: server.Server, tmp_path: Path) -> None:
    before = feather_state(launched.url)
    output = tmp_path / "result.jsonl"
    workload = {
        "num-groups": 4,
        "prompts-per-group": 4,
        "system-prompt-len": 384,
        "question-len": 16,
        "output-len": 8,
    }
    subprocess.run(
        [
            *(sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang", "--base-url", launched.url),
            *("--model", str(model.embedded_model()), "--dataset-name", "generated-shared-prefix"),
            *(part for name, value in workload.items() for part in (f"--gsp-{name}", str(value))),
            *("--disable-tqdm", "--warmup-requests", "0", "--output-file", str(output)),
        ],
        env=server.quick_environment() | {"HOME": str(tmp_path)},  # it keeps prompts under the home folder
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert json.loads(output.read_text().splitlines()[-1])["completed"] == 16
    after = feather_state(launched.url)
    assert after["policy"] == "feather"
    assert after["admitted"] - before["admitted"] == 16
    assert after["barrier_waits"] > before["barrier_waits"]
    assert (after["waiting"], after["running"], after["failures"]) == (0, 0, 0)


def test_sglang_serve(tmp_path: Path) -> None:
    folder = str(write_model(tmp_path / "tiny"))
    args = ["serve", "--model-path", folder, "--load-format", "dummy", *ON_CPU, "--max-total-tokens", "8000"]
    served = server.start(
        [*args, "--schedule-policy", "feather", "--feather-order", "missing", "--skip-tokenizer-init"],
        log=tmp_path / "log",
        env=server.quick_environment() | PLATFORM,
        program=[str(Path(sys.executable).with_name("sglang"))],
    )
    try:
        served.wait_ready(PATIENCE)
        body = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
        request = urllib.request.Request(
            f"{served.url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert json.load(answer)["meta_info"]["completion_tokens"] == 4
        state = feather_state(served.url)
        assert (state["order"], state["admitted"]) == ("missing", 1)
    finally:
        served.kill()


ENGINE = """
import json, sys
import sglang

if __name__ == "__main__":
    engine = sglang.Engine(
        model_path=sys.argv[1], load_format="dummy", device="cpu", attention_backend="torch_native",
        disable_cuda_graph=True, max_total_tokens=8000, skip_tokenizer_init=True, schedule_policy="feather",
        log_level="error",
    )
    answers = engine.generate(
        input_ids=[[5, 6, 7, 8], [5, 6, 9, 9]], sampling_params={"max_new_tokens": 4, "ignore_eos": True}
    )
    state = engine.get_server_info()["internal_states"][0]["feather"]
    print(json.dumps({"answers": len(answers), "policy": state["policy"], "gate": state["gate"]}))
    engine.shutdown()
"""


def test_engine(tmp_path: Path) -> None:
    """``Engine`` takes no unknown arguments: options come from the environment."""
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    done = subprocess.run(
        [sys.executable, str(script), str(write_model(tmp_path / "tiny"))],
        env=server.quick_environment() | PLATFORM | {"FEATHER_GATE": "static"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    assert json.loads(line) == {"answers": 2, "policy": "feather", "gate": "static"}


def test_help_lists_the_choice_and_the_flags() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sglang.launch_server", "--help"],
        env=server.quick_environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    choices = done.stdout[done.stdout.index("--schedule-policy") :].split("}")[0]
    assert "feather" in choices
    for flag in ("order", "gate", "chunk-size", "aging", "barrier-min", "max-wait", "on-mismatch"):
        assert f"--feather-{flag}" in done.stdout
