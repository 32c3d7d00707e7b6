"""The platform inside SGLang, each in a process of its own: SGLang resolves a platform once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from feather_sglang.cli import server
from tests.waiting import PATIENCE

pytestmark = pytest.mark.slow


def run(program: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=server.quick_environment() | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("environment", [{}, {"SGLANG_PLATFORM": "feather_cpu"}], ids=["unnamed", "named"])
def test_sglang_resolves_it_and_the_policy_still_loads(environment: dict[str, str]) -> None:
    """SGLang drops the plugins of every distribution that owns a platform other than the one named."""
    program = """
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.platforms import current_platform
print(type(current_platform).__module__, current_platform.is_out_of_tree(), current_platform.device_type)
print(current_platform.get_default_attention_backend())
import argparse
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print("feather" in parser._option_string_actions["--schedule-policy"].choices)
"""
    assert run(program, **environment) == ["feather_sglang_cpu.platform True cpu", "torch_native", "True"]


def test_pinned_memory_is_ordinary_memory() -> None:
    program = """
import torch
before = torch.tensor([1, 2], dtype=torch.int32)
from feather_sglang_cpu.pinning import ignore_pinning
ignore_pinning()
ignore_pinning()
pinned = torch.tensor([1, 2], dtype=torch.int32, pin_memory=True)
print(torch.equal(before, pinned), pinned.is_pinned(), pinned.dtype)
print(torch.zeros((2, 3), pin_memory=True).shape, torch.arange(3, pin_memory=True).pin_memory().tolist())
print(torch.empty_like(before, pin_memory=True).shape, torch.zeros(2).pin_memory().tolist())
"""
    assert run(program) == [
        "True False torch.int32",
        "torch.Size([2, 3]) [0, 1, 2]",
        "torch.Size([2]) [0.0, 0.0]",
    ]


def test_linear_layers_and_heads_by_onednn() -> None:
    """As exact as upstream's, and taken over, also after an update of weights; the rest is left to upstream."""
    program = """
from types import SimpleNamespace
import torch
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.quantization.unquant import UnquantizedEmbeddingMethod, UnquantizedLinearMethod
upstream, upstream_head = UnquantizedLinearMethod.apply, LogitsProcessor._compute_lm_head
from feather_sglang_cpu import linear
linear.use_onednn()
ours, ours_head = UnquantizedLinearMethod.apply, LogitsProcessor._compute_lm_head
linear.use_onednn()
assert ours is UnquantizedLinearMethod.apply is not upstream
product, taken = linear._product, []
linear._product = lambda *args: taken.append(args) or product(*args)
torch.manual_seed(1)
method = UnquantizedLinearMethod()
layer = SimpleNamespace(weight=torch.nn.Parameter(torch.randn(96, 64) / 8, requires_grad=False), quant_method=None)

def equal(x, bias=None):
    theirs, mine = upstream(method, layer, x, bias), ours(method, layer, x, bias=bias)
    assert mine.is_contiguous() and mine.dtype == theirs.dtype
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)

for rows in (0, 1, 8, 300):
    equal(torch.randn(rows, 64), torch.randn(96))
equal(torch.randn(2, 3, 64))
equal(torch.randn(8, 128)[:, :64])
layer.weight.data[:50].copy_(torch.randn(50, 64))
equal(torch.randn(8, 64))
print(len(taken))
head = SimpleNamespace(weight=layer.weight, quant_method=UnquantizedEmbeddingMethod())
logits = SimpleNamespace(use_fp32_lm_head=False, use_fp32_lm_head_output=False, rl_on_policy_target=None)
x = torch.randn(8, 64)
torch.testing.assert_close(ours_head(logits, x, head), upstream_head(logits, x, head), rtol=1e-5, atol=1e-5)
print(len(taken))
logits.rl_on_policy_target = "fsdp"
assert ours_head(logits, x, head).dtype == torch.bfloat16
layer.weight.data = layer.weight.data.bfloat16()
equal(torch.randn(8, 64).bfloat16())
print(len(taken))
"""
    assert run(program, SGLANG_PLATFORM="feather_cpu") == ["7", "8", "8"]
