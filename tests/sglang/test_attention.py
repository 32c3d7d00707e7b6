"""The CPU backend on a real Scheduler: what it answers, whom it asks for the plan, what it calls, what it refuses."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

from feather_sglang.bench.tiny_llama import write_model
from feather_sglang.core.sharing import FREE, Paths, Sharing, paths_from_slots, plan_sharing
from feather_sglang.sglang.attention import steps
from feather_sglang.sglang.attention.kernels import attend, attend_by_products
from feather_sglang.sglang.attention.layout import TAIL, LayoutMaker
from feather_sglang.sglang.attention.source import PlanSource
from feather_sglang.sglang.attention.steps import attend_decode
from tests.harness.prompts import Tokens, interleaved

SHAPE = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2}


@pytest.fixture
def scheduler(start, tmp_path_factory):
    model = str(write_model(tmp_path_factory.getbasetemp() / "llama-of-6-heads", **SHAPE))

    def start_with(**settings):
        return start(**({"model_path": model, "attention_backend": "feather-cascade"} | settings))

    return start_with


def prompts():
    """Four families, nested: half of each shares more; one prompt is of nobody's kind."""
    tokens = Tokens()
    wide = tokens.families(4, 3, 300, 20)
    deep = [[family[0] + tokens.take(30) for _ in range(3)] for family in wide]
    return [*interleaved(wide), *interleaved(deep), tokens.take(200)]


def answers(harness, prompts, new=10):
    rids = harness.send_all(prompts, new=new)
    requests = [harness._requests[rid] for rid in rids]
    harness.run()
    return [list(request.output_ids) for request in requests]


@pytest.fixture(scope="module")
def expected():
    return {}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"attention_backend": "torch_native"},
        {"options": {"sharing": "on"}},
        {"options": {"sharing": "off"}},
        {"options": {"sharing": "on"}, "schedule_policy": "fcfs"},
        {"options": {"sharing": "on"}, "page_size": 16, "chunked_prefill_size": 256},
        {"options": {"sharing": "on"}, "enable_mixed_chunk": True, "chunked_prefill_size": 256, "overlap": False},
    ],
    ids=str,
)
def test_answers_are_those_of_torch_native(scheduler, expected, settings):
    """Whoever shares, in whatever order rows are, and over whatever slots."""
    harness = scheduler(**settings)
    seen = answers(harness, prompts())
    assert len({tuple(answer) for answer in seen}) > 10, "answers depend on the prompt"
    assert expected.setdefault("answers", seen) == seen
    plans = harness.state().get("feather_attention")
    if plans is None:
        return
    assert (plans["kv_tokens_saved"] > 0) == (plans["sharing"] == "on")
    asked = {"scheduler": plans["scheduler"], "slots": plans["slots"]}
    policy = "slots" if settings.get("schedule_policy") == "fcfs" else "scheduler"
    assert (asked.pop(policy) > 0) == (plans["sharing"] == "on")
    assert list(asked.values()) == [0]


def test_where_nothing_is_shared_it_calls_what_it_calls_without_sharing(scheduler, monkeypatch):
    calls = {}

    def counted(*args, **named):
        calls[sharing].append([tuple(each.shape) for each in args[:3]])
        return attend(*args, **named)

    monkeypatch.setattr(steps, "attend", counted)
    for sharing in ("on", "off"):
        calls[sharing] = []
        tokens = Tokens()
        answers(scheduler(options={"sharing": sharing}), [tokens.take(100 + 40 * i) for i in range(12)])
    assert len(calls["on"]) > 40
    assert calls["on"] == calls["off"]


# --- one layer -------------------------------------------------------------------------------------------------------


class Pool:
    """KV of rows in slots: families in a row each, tails scattered."""

    def __init__(self, draw, dtype, rows=9, kv_heads=2, size=16):
        self.generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
        slots = list(range(1, 12_000))
        draw.shuffle(slots)
        prefixes = []
        for family in range(3):
            start, length = 12_000 + 2_000 * family, draw.randint(130, 1200)
            prefixes.append(list(range(start, start + length)))
        prefixes[2][50:60] = [slots.pop() for _ in range(10)]  # one that the cache holds in three pieces
        self.lengths = []
        self.table = np.zeros((rows, 4000), np.int32)
        for row in range(rows):
            held = draw.choice([*prefixes, []])
            held = held[: draw.choice([len(held), draw.randint(0, len(held))])]
            held = held + [slots.pop() for _ in range(draw.choice([1, 2, 60, 2 * TAIL]))]
            self.table[row, : len(held)] = held
            self.lengths.append(len(held))
        self.keys, self.values = (self.random(18_000, kv_heads, size).to(dtype) for _ in range(2))
        self.query = self.random(rows, kv_heads, 3, size).to(dtype)
        self.maker = LayoutMaker(self.table, dtype)

    def random(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def plan(self):
        return plan_sharing(paths_from_slots(lambda rows, k: self.table[rows, k].tolist(), self.lengths), FREE)

    def attend(self, plan):
        rows = np.arange(len(self.lengths))
        layout = self.maker.layout(plan, rows, np.array(self.lengths))
        return attend_decode(self.query, self.keys, self.values, layout, 0.25)

    def reference(self):
        """One row after the other, in float64."""
        outputs = []
        for row, length in enumerate(self.lengths):
            k, v = (buffer[self.table[row, :length]].double().transpose(0, 1) for buffer in (self.keys, self.values))
            weights = torch.softmax(self.query[row].double() @ k.transpose(1, 2) * 0.25, -1)
            outputs.append(weights @ v)
        return torch.stack(outputs)


def alone(rows):
    return Sharing((), (0,) * rows, 0)


@pytest.mark.parametrize("seed", range(20))
def test_one_layer_against_a_reference(seed):
    """Sharing and not, while rows grow, leave, and are given out again."""
    draw = random.Random(seed)
    pool = Pool(draw, torch.float32)
    for _ in range(4):
        reference = pool.reference()
        assert torch.allclose(pool.attend(pool.plan()).double(), reference, atol=1e-5)
        assert torch.allclose(pool.attend(alone(len(pool.lengths))).double(), reference, atol=1e-5)
        for row in range(len(pool.lengths)):
            pool.table[row, pool.lengths[row]] = 11_000 + 20 * row + draw.randrange(20)
            pool.lengths[row] += 1
        row = draw.randrange(len(pool.lengths))  # SGLang puts other slots in place of those of a row
        pool.table[row, : pool.lengths[row]] = np.array(draw.sample(range(1, 12_000), pool.lengths[row]))


def test_bfloat16_is_as_near_to_the_truth_with_sharing_as_without():
    """vllm#22103: outputs that depend on who shares a prefix. Rounding is all that may differ, and not by more."""
    with_sharing = without = 0.0
    for seed in range(10):
        pool = Pool(random.Random(seed), torch.bfloat16)
        reference = pool.reference()
        with_sharing += float((pool.attend(pool.plan()).double() - reference).square().mean())
        without += float((pool.attend(alone(len(pool.lengths))).double() - reference).square().mean())
    assert 0 < with_sharing <= 1.05 * without


def test_layouts_are_kept_while_only_tails_grow():
    pool = Pool(random.Random(1), torch.float32)
    plan = pool.plan()
    for step in range(20):
        pool.attend(plan)
        for row in range(len(pool.lengths)):
            pool.table[row, pool.lengths[row]] = 100 * step + row
            pool.lengths[row] += 1
    assert pool.maker.made == 1


def test_a_row_that_is_given_out_again():
    """Even where the generations of rows begin anew with a flush (SGLang before 0.5.22)."""
    pool = ReqToTokenPool(size=4, max_context_len=64, device="cpu", enable_memory_saver=False)
    source = PlanSource(pool, "on", FREE)
    batch = SimpleNamespace(req_pool_indices=torch.tensor([1, 2]))
    pool.req_to_token[1:3, :32] = torch.arange(1, 33)
    for _ in range(3):
        assert [(r.rows, r.end) for r in source.plan(batch, [32, 32]).ranges] == [((0, 1), 32)]
    pool.req_to_token[2, 8:] += 100
    assert [(r.rows, r.end) for r in source.plan(batch, [32, 32]).ranges] == [((0, 1), 8)]
    source.offered = Paths([0, 1], [0, 32])  # what a scheduler would be wrong about is not believed
    assert [(r.rows, r.end) for r in source.plan(batch, [32, 32]).ranges] == [((0, 1), 8)]
    assert (source.scheduler, source.slots) == (0, 5)


@pytest.mark.parametrize("kind", ["plain", "masked", "causal"])
def test_without_the_kernel_of_pytorch(kind):
    query, key, value = (torch.randn(2, 3, 7, 16) for _ in range(3))
    mask = torch.zeros(2, 1, 1, 7).masked_fill_(torch.arange(7) > 4, -torch.inf) if kind == "masked" else None
    one = attend(query, key, value, 0.25, mask=mask, causal=kind == "causal")
    other = attend_by_products(query, key, value, 0.25, mask=mask, causal=kind == "causal")
    for a, b in zip(one, other, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


# --- what it cannot do -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"speculative_algorithm": "NGRAM"}, "speculative decoding on the CPU"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "a KV cache of fp8_e4m3 on the CPU"),
    ],
)
def test_refusals(start_alone, settings, says):
    with pytest.raises(ValueError, match=r"--attention-backend feather-cascade does not support") as refused:
        start_alone(attention_backend="feather-cascade", **settings)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 512}, "sliding-window"),
        ({"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2"}, "sliding-window"),
    ],
)
def test_refused_models(start_alone, tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        start_alone(attention_backend="feather-cascade", model_path=str(write_model(tmp_path / "model", **changes)))
