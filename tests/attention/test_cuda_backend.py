"""The backend for GPUs, without one: which path a step takes; FlashInfer is its contract in PyTorch."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.runner_utils import capture_mode

from feather_sglang.core.sharing import FREE, Paths, plan_sharing
from feather_sglang.sglang.attention import cuda
from feather_sglang.sglang.attention.cascade import Cascade
from feather_sglang.sglang.attention.source import PlanSource
from tests.attention.pool import SHAPE, SLOTS, Pool
from tests.attention.reference_wrapper import ReferenceWrapper


class Upstream:
    """Calls that reach SGLang's own backend, which needs a GPU to answer them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for name in ("init_forward_metadata", "init_forward_metadata_out_graph", "forward_decode"):
            patch.setattr(FlashInferAttnBackend, name, lambda *args, name=name, **named: self.calls.append(name))
        patch.setattr(FlashInferAttnBackend, "init_cuda_graph_state", lambda *args: None)


@pytest.fixture
def upstream(monkeypatch):
    return Upstream(monkeypatch)


def backend_of(pool: Pool) -> cuda.CascadeCudaBackend:
    """A backend as its constructor leaves it, but for what needs a GPU."""
    backend = object.__new__(cuda.CascadeCudaBackend)
    backend.req_to_token_pool = SimpleNamespace(
        req_to_token=pool.table, req_generation=torch.zeros(len(pool.table), dtype=torch.int64)
    )
    backend.token_to_kv_pool = SimpleNamespace(
        size=SLOTS, page_size=1, get_kv_buffer=lambda layer: pool.cache, set_kv_buffer=lambda *args: None
    )
    backend.cuda_graph_kv_indices = [torch.zeros(16 * pool.table.shape[1], dtype=torch.int32)]
    backend._cascade = Cascade(ReferenceWrapper, torch.empty(1), pool.table, SHAPE)
    backend._wrapper = backend._selected = None
    backend._sharing, backend._costs = "on", FREE._replace(levels=3)
    backend.plans = PlanSource(backend.req_to_token_pool, "on", backend._costs, adjacent=True)
    return backend


def batch_of(pool: Pool, size: int | None = None, mode: ForwardMode = ForwardMode.DECODE) -> SimpleNamespace:
    """The forward batch of a pool's rows, padded to ``size`` as for a captured graph."""
    padding = (size or len(pool.rows)) - len(pool.rows)
    return SimpleNamespace(
        forward_mode=mode,
        batch_size=len(pool.rows) + padding,
        req_pool_indices=torch.cat([pool.rows, torch.zeros(padding, dtype=torch.long)]),
        seq_lens_cpu=torch.tensor(pool.lengths + [1] * padding),
        out_cache_loc=None,
    )


LAYER = SimpleNamespace(
    layer_id=0, tp_q_head_num=SHAPE.query_heads, head_dim=SHAPE.head_size, scaling=SHAPE.scale, logit_cap=0.0
)


def decode(backend, pool, batch):
    query = torch.zeros(batch.batch_size, SHAPE.query_heads * SHAPE.head_size)
    query[: len(pool.query)] = pool.query.flatten(1)
    output = backend.forward_decode(query, None, None, LAYER, batch)
    return None if output is None else output.view(-1, SHAPE.query_heads, SHAPE.head_size)


def alone(pool: Pool) -> Pool:
    """The same rows, sharing nothing."""
    pool.table[pool.rows] = torch.arange(len(pool.rows) * pool.table.shape[1], dtype=torch.int32).view(
        len(pool.rows), -1
    )
    return pool


def test_a_step_that_shares_runs_the_cascade_and_every_other_is_upstreams(upstream):
    pool = Pool(3)
    backend = backend_of(pool)
    batch = batch_of(pool)
    backend.init_forward_metadata(batch)
    pool.check(decode(backend, pool, batch))
    assert upstream.calls == []
    assert backend.plans.state()["kv_tokens_saved"] > 0

    backend.init_forward_metadata(batch_of(pool, mode=ForwardMode.EXTEND))
    backend = backend_of(alone(pool))
    backend.init_forward_metadata(batch)
    decode(backend, pool, batch)
    assert upstream.calls == ["init_forward_metadata", "init_forward_metadata", "forward_decode"]


def test_two_graphs_of_a_size_and_the_plan_says_which(upstream, monkeypatch):
    pool = Pool(3)
    backend = backend_of(pool)
    backend.init_cuda_graph_state(16, 16)
    graphs = cuda.CascadeGraphs(backend)
    captured = {}
    for label in graphs.capture_labels:
        monkeypatch.setattr(capture_mode, "_capture_attention_variant", label)
        backend.init_forward_metadata_out_graph(batch_of(pool, 16), in_capture=True)
        captured[label] = backend._wrapper
    assert captured[cuda.PLAIN] is None
    assert isinstance(captured[cuda.SHARED], ReferenceWrapper)
    assert upstream.calls == ["init_forward_metadata_out_graph"]

    assert graphs.select(batch_of(pool)) == cuda.SHARED
    backend.init_forward_metadata_out_graph(batch_of(pool, 16))
    assert upstream.calls == ["init_forward_metadata_out_graph"]
    pool.check(decode(backend, pool, batch_of(pool, 16)))
    assert captured[cuda.SHARED].plans == 2

    monkeypatch.setattr(PlanSource, "offered", Paths(range(len(pool.rows)), [0] * len(pool.rows)))
    assert graphs.select(batch_of(pool)) == cuda.PLAIN
    backend.init_forward_metadata_out_graph(batch_of(pool, 16))
    assert upstream.calls == ["init_forward_metadata_out_graph"] * 2
    assert graphs.select(batch_of(pool, mode=ForwardMode.IDLE)) == cuda.PLAIN


def test_the_runner_that_captures_graphs_is_given_both(monkeypatch):
    from sglang.srt.model_executor.runner import decode_cuda_graph_runner as module

    made = []
    monkeypatch.setattr(module, "create_attention_graph_variants", lambda config: made[0] if made else None)
    cuda.CascadeGraphs.follow(object())
    assert module.create_attention_graph_variants(None).capture_labels == ("plain", "shared")
    made.append("upstream's")
    assert module.create_attention_graph_variants(None) == "upstream's"


@pytest.mark.parametrize(
    "method", ["init_forward_metadata", "init_cuda_graph_state", "init_forward_metadata_out_graph", "forward_decode"]
)
def test_what_is_overridden_has_upstreams_parameters(method):
    ours, theirs = (
        inspect.signature(inspect.unwrap(getattr(each, method))).parameters
        for each in (cuda.CascadeCudaBackend, FlashInferAttnBackend)
    )
    assert [name for name in ours if name != "named"] == list(theirs)


@pytest.mark.parametrize(
    ("kv_heads", "rows", "tokens", "shares"),
    [(1, 8, 4000, False), (8, 8, 4000, True), (8, 128, 64, False), (8, 128, 256, True), (8, 1, 100_000, False)],
)
def test_what_others_measured_is_decided_as_they_found_it(kv_heads, rows, tokens, shares):
    """flashinfer #595, TensorRT-LLM #14396."""
    paths = Paths(range(rows), [0, *[tokens] * (rows - 1)])
    assert bool(plan_sharing(paths, cuda.costs_of(kv_heads, 128, 2)).ranges) is shares


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda r, b: None, None),
        (lambda r, b: setattr(b, "num_wrappers", 2), "sliding window"),
        (lambda r, b: setattr(b.indices_updater_decode, "data_type", torch.float8_e4m3fn), "float8"),
        (lambda r, b: setattr(b.indices_updater_decode, "num_qo_heads", 96), "heads"),
        (lambda r, b: setattr(b.kv_index_translator, "reads_are_translated", True), "slots"),
        (lambda r, b: setattr(r.layers[1], "logit_cap", 30.0), "caps"),
        (lambda r, b: setattr(r.layers[1], "scaling", 0.5), "differ"),
        (lambda r, b: setattr(r.spec_algorithm, "none", False), "speculative"),
    ],
)
def test_what_the_cascade_cannot_do_is_upstreams_and_said(change, reason):
    from sglang.srt.layers.radix_attention import RadixAttention

    layers = [RadixAttention(8, 128, 0.1, num_kv_heads=2, layer_id=i) for i in range(2)]
    spec = SimpleNamespace(none=True)
    spec.is_none = lambda: spec.none
    runner = SimpleNamespace(
        layers=layers, model=torch.nn.ModuleList(layers), spec_algorithm=spec, kv_cache_dtype=torch.bfloat16
    )
    updater = SimpleNamespace(
        num_qo_heads=8, num_kv_heads=2, head_dim=128, q_data_type=torch.bfloat16, data_type=torch.bfloat16
    )
    backend = SimpleNamespace(
        num_wrappers=1, kv_index_translator=SimpleNamespace(reads_are_translated=False), indices_updater_decode=updater
    )
    change(runner, backend)
    found = cuda.without_sharing(runner, backend)
    assert found is None if reason is None else reason in found
