"""One live ``feather serve`` with no model named: the embedded one, by the policy, and LoRA adapters on it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import openai
import psutil
import pytest

from feather_sglang.cli import model, server
from tests.waiting import PATIENCE, until

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class Served(NamedTuple):
    process: subprocess.Popen[bytes]
    log: Path
    url: str
    client: openai.OpenAI

    def answer(self, name: str) -> str:
        choice = self.client.chat.completions.create(model=name, messages=QUESTION, temperature=0, max_tokens=16)  # type: ignore[arg-type]
        return choice.choices[0].message.content or ""


def write_adapter(folder: Path, scale: float) -> Path:
    """A LoRA adapter of rank 8 on the attention's output; ``scale`` 0 leaves the model as it is."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model.embedded_model() / "config.json").read_text())
    hidden = config["hidden_size"]
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{prefix}.lora_A.weight"] = torch.randn(8, hidden, generator=generator)
        weights[f"{prefix}.lora_B.weight"] = torch.randn(hidden, 8, generator=generator) * scale
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "target_modules": ["o_proj"], "r": 8, "lora_alpha": 8, "bias": "none"})
    )
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("serve")
    adapters = [f"same={write_adapter(folder / 'same', 0.0)}", f"other={write_adapter(folder / 'other', 1.0)}"]
    port, log = server.free_port(), folder / "log"
    command = [sys.executable, "-m", "feather_sglang.cli.main", "serve", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--lora-paths", *adapters],
            env=server.quick_environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: f"feather: ready at {url}" in log.read_text() or process.poll() is not None, log.read_text)
        assert process.poll() is None, log.read_text()
        yield Served(process, log, url, openai.OpenAI(base_url=f"{url}/v1", api_key="none"))
    finally:
        process.kill()


def test_it_answers_a_chat(served: Served) -> None:
    assert "Paris" in served.answer("default")
    assert served.client.models.list().data[0].id == model.NAME


def test_its_example_works(served: Served) -> None:
    said = served.log.read_text()
    request = said[said.index("    curl ") :].split("\n\n")[0]
    done = subprocess.run(["bash", "-c", request], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert "Paris" in json.loads(done.stdout)["choices"][0]["message"]["content"]


def test_it_serves_by_the_policy(served: Served) -> None:
    state: dict[str, Any] = json.load(urllib.request.urlopen(f"{served.url}/server_info", timeout=PATIENCE))
    assert state["schedule_policy"] == "feather"
    assert state["internal_states"][0]["feather"]["policy"] == "feather"


def test_adapters_are_served_on_the_cpu(served: Served) -> None:
    plain = served.answer("default")
    assert served.answer(f"{model.NAME}:same") == plain
    assert served.answer(f"{model.NAME}:other") != plain


def test_it_ends_with_all_it_started(served: Served) -> None:
    """The last test here."""
    tree = psutil.Process(served.process.pid).children(recursive=True)
    assert len(tree) >= 3  # launcher, scheduler, detokenizer
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(PATIENCE) == 0
    _, left = psutil.wait_procs(tree, timeout=PATIENCE)
    assert left == []
