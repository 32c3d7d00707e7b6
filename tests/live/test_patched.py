"""A patched copy of the installed SGLang: it serves without the plugin, decides alike, and is taken back exactly."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import sglang

from feather_sglang.bench.tiny_llama import write_model
from feather_sglang.cli import main as cli
from feather_sglang.cli import server
from feather_sglang.sglang.parking import support
from tests.harness.prompts import Tokens, interleaved
from tests.harness.rank_faults import cores, install
from tests.patches.conftest import SERIES, contents
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow

ON_CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the copy; what is reverted at the end is what was copied, byte for byte."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    assert spec.origin is not None
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(Path(spec.origin).parent, folder / "sglang", ignore=shutil.ignore_patterns("__pycache__"))
    before = contents(folder)
    assert cli.main(["patch", "apply", "--sglang", str(folder)]) == 0
    yield folder
    for cache in folder.rglob("__pycache__"):
        shutil.rmtree(cache)
    assert cli.main(["patch", "revert", "--sglang", str(folder)]) == 0
    assert contents(folder) == before


def first(site: Path, *others: str) -> dict[str, str]:
    """An environment in which this SGLang is found before the installed one, and others after it."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(site), *others, os.environ.get("PYTHONPATH")]))}


def test_a_server_of_two_ranks_without_the_plugin_serves_by_name(site: Path, tmp_path: Path) -> None:
    """The gate decides by measured nanoseconds (``tests/harness/rank_faults.py``), which only the leader measures: the
    patches' own message to all ranks is what makes them agree. SGLang's checker ends a server whose ranks differ.

    Before 0.5.23 SGLang makes a group of two ranks on CUDA devices only: there, one rank serves."""
    count = 1 if sglang.__version__ in ("0.5.20", "0.5.21", "0.5.22") else 2
    model = write_model(tmp_path / "model", num_hidden_layers=2, num_key_value_heads=2, tie_word_embeddings=False)
    args = ["--model-path", str(model), *ON_CPU, "--load-format", "dummy", "--skip-tokenizer-init"]
    args += ["--tp-size", str(count), "--max-total-tokens", "20000", "--max-running-requests", "24"]
    flags = ["--schedule-policy", "feather", "--feather-aging", "0.25", "--feather-gate", "static"]
    env = first(site, install(tmp_path / "plugin")["PYTHONPATH"]) | {
        "SGLANG_PLATFORM": "feather_cpu",
        "SGLANG_CPU_OMP_THREADS_BIND": cores(count),
        "SGLANG_ENABLE_RANK_CONSENSUS_CHECKER": "1",
        # SGLang's whitelist holds for platforms too: the policy's plugin is not on it.
        "SGLANG_PLUGINS": "feather_cpu,feather_rank_faults",
    }
    log = tmp_path / "log"
    with server.running([*args, *flags], log=log, env=env) as running:
        for prompt in ([7] * 300, [7] * 300 + [8] * 9):
            answer = generate(running.url, prompt)
            assert len(answer["output_ids"]) == 4
        assert answer["meta_info"]["cached_tokens"] >= 299
        for _ in range(3):
            assert len(generate(running.url, interleaved(Tokens().families(8, 16, 96, 24)))) == 128
        with urllib.request.urlopen(f"{running.url}/server_info", timeout=PATIENCE) as reply:
            state = json.load(reply)["internal_states"][0]["feather"]
    said = log.read_text()
    ranks = [re.findall(rf"rank {rank} admitted (\d+) digest (\d+)", said) for rank in range(count)]
    assert ranks[0] == ranks[-1]
    assert ranks[0][-1] == (str(state["admitted"]), str(state["decisions_digest"]))
    assert (state["policy"], state["aging"], state["admitted"]) == ("feather", 0.25, 2 + 3 * 128)
    assert (state["ranks"], state["failures"]) == (count, 0)
    assert state["ticks"] > 2, "a tick goes out for some 16 steps at the latest"
    assert state["gate_state"]["steps"] > 10
    assert f"policy=feather order={state['order']}" in said


def generate(url: str, prompts: Any) -> Any:
    sampling = {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    return post(f"{url}/generate", {"input_ids": prompts, "sampling_params": sampling})


def post(url: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
        return json.load(reply)


def test_without_the_package_the_name_is_refused_in_one_line(site: Path) -> None:
    code = (
        "import sys; sys.modules['feather_sglang'] = None\n"
        "from sglang.srt.server_args import prepare_server_args\n"
        "prepare_server_args(['--model-path', 'm', '--schedule-policy', 'feather'])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=os.environ | first(site), capture_output=True
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.decode().splitlines() if line.startswith("error:")]
    assert "--schedule-policy feather needs the package feather-sglang" in line
    assert "Traceback" not in done.stderr.decode()


def test_a_part_of_the_patches_is_refused_in_one_line_by_the_launcher(site: Path) -> None:
    """Four patches are taken back by hand; then, of a published tree, one is put in that no order allows alone."""
    series = SERIES[sglang.__version__]

    def by_hand(number: int, *arguments: str) -> None:
        patch = series.folder / series.names[number - 1]
        subprocess.run(["patch", "-p2", "-s", "-d", site, *arguments, "-i", patch], check=True)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | first(site) | {"SGLANG_PLATFORM": "feather_cpu"}
        return subprocess.run([sys.executable, "-W", "ignore", *command], env=env, capture_output=True, text=True)

    part = "it has only a part of the patches (`feather patch check`): no "
    try:
        for number in (6, 5, 4, 3):
            by_hand(number, "-R")
        done = run("-m", "sglang.launch_server", "--model-path", "m", "--schedule-policy", "feather")
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("feather: ")]
        assert f"{part}reserve, decode, a queue that is observed. " in line
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)
        assert cli.main(["patch", "apply", "--sglang", str(site)]) == 2
        assert cli.main(["patch", "revert", "--sglang", str(site)]) == 0

        by_hand(4)
        done = run("-c", "from feather_sglang.sglang import compat; print(compat.check_route())")
        assert f"{part}registry of policies" in done.stdout
        assert cli.main(["patch", "apply", "--sglang", str(site)]) == 2
        by_hand(4, "-R")
    finally:
        for left in site.rglob("*.orig"):
            left.unlink()
        cli.main(["patch", "revert", "--sglang", str(site)])
        assert cli.main(["patch", "apply", "--sglang", str(site)]) == 0


def traced(env: Mapping[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.harness.trace"]
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=True)
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def test_both_routes_decide_alike_and_nothing_is_hooked_twice(site: Path) -> None:
    plugin, native = traced({}), traced(first(site))
    assert (plugin["patched"], native["patched"]) == (False, True)
    assert len(plugin["hooked"]) > 10
    assert native["hooked"] == ["sglang.srt.managers.scheduler.Scheduler.run_batch"]
    for name, trace in plugin["traces"].items():
        assert trace["retracted"] > 0
        assert trace["state"]["admitted"] > 50
        assert native["traces"][name] == trace, name
    if support.is_supported():
        assert plugin["traces"]["rows that are parked for no reason"]["parking"]["parks"] > 0
        assert plugin["traces"]["rows that sit out"]["parking"]["partial_steps"] > 0

    # Penalties by position: outputs do not depend on who else arrives when.
    staggered, at_once = native["penalties"]
    assert staggered == at_once
    staggered, at_once = plugin["penalties"]
    assert staggered != at_once


def test_the_tests_of_the_series_pass_on_what_it_patches(site: Path, tmp_path: Path) -> None:
    """The seventh patch is for a checkout; what its tests import is in the wheel."""
    (patch,) = (Path(__file__).parents[2] / "patches" / f"sglang-{sglang.__version__}").glob("0007-*.patch")
    subprocess.run(["patch", "-s", "-p1", "-i", str(patch)], cwd=tmp_path, check=True)
    (test,) = tmp_path.rglob("test_*.py")
    command = [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", str(test)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | first(site), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "14 passed" in done.stdout


def test_the_doctor_looks_for_patches_not_hooks(site: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "feather_sglang.cli.main", "doctor", "--json"]
    done = subprocess.run(command, env=os.environ | first(site), capture_output=True, text=True)
    assert json.loads(done.stdout)["checks"]["hooks"]["value"] == "none: SGLang is patched"
