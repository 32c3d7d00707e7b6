"""The backend on NVIDIA GPUs: SGLang's own FlashInfer backend, and its cascade for decode steps that share.

Everything else is upstream's: extend, decode steps that share nothing worth its price, and models or options whose
decode the cascade cannot do (``without_sharing``), which decode as with ``--attention-backend flashinfer``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from sglang.srt.layers.attention.flashinfer_backend import FlashInferAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch import Tensor

from feather_sglang.core.sharing import Costs, Sharing
from feather_sglang.sglang.attention.cascade import Cascade, Shape
from feather_sglang.sglang.attention.source import PlanSource

logger = logging.getLogger(__name__)

PLAIN, SHARED = "plain", "shared"
"""Two graphs are captured for every batch size; which one is replayed depends on the plan."""


class CascadeCudaBackend(FlashInferAttnBackend):
    """:param sharing: ``on``, ``off`` or ``auto``."""

    def __init__(self, runner: Any, sharing: str, **options: Any) -> None:
        super().__init__(runner, **options)
        for phase, access in (("prefill", self.prefill_kv_access), ("decode", self.decode_kv_access)):
            self._check_kv_attention_access(phase, access)  # upstream checks its own class only
        self.stands_back = without_sharing(runner, self)
        """Why no KV is shared; None: it is."""
        if self.stands_back is not None:
            logger.warning("feather: every row reads its own KV, because %s", self.stands_back)
            sharing = "off"
        self._sharing = sharing
        self._cascade: Cascade | None = None
        self._wrapper: Any = None
        """What runs this step's decode; None: upstream's."""
        self._selected: Sharing | None = None
        """The plan of the graph that is about to be replayed; None: upstream's graph."""
        updater = self.indices_updater_decode
        self._costs = costs_of(updater.num_kv_heads, updater.head_dim, updater.data_type.itemsize)
        self.plans = PlanSource(self.req_to_token_pool, sharing, self._costs, adjacent=True)
        if sharing != "off":
            from flashinfer import MultiLevelCascadeAttentionWrapper

            table = self.req_to_token_pool.req_to_token
            self._cascade = Cascade(
                MultiLevelCascadeAttentionWrapper, self.workspace_buffer, table, shape_of(runner, updater)
            )
            CascadeGraphs.follow(self)

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Once a step that replays no graph."""
        plan = self._plan(forward_batch)
        if plan is None:
            self._wrapper = None
            super().init_forward_metadata(forward_batch)
        else:
            assert self._cascade is not None
            lengths = forward_batch.seq_lens_cpu.tolist()
            self._wrapper = self._cascade.plan(plan, forward_batch.req_pool_indices, lengths)

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int, kv_indices_buf: Tensor | None = None) -> None:
        """Before graphs are captured. With graphs, rows share at one level: its number is part of the graph."""
        super().init_cuda_graph_state(max_bs, max_num_tokens, kv_indices_buf)
        if self._cascade is not None:
            slots = self.token_to_kv_pool.size + self.token_to_kv_pool.page_size
            self._cascade.prepare_capture(max_bs, slots, self.cuda_graph_kv_indices[0])
            self.plans = PlanSource(
                self.req_to_token_pool, self._sharing, self._costs._replace(levels=1), adjacent=True
            )

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Before a graph is captured, and before it is replayed."""
        rows = forward_batch.req_pool_indices[: forward_batch.batch_size]
        if not forward_batch.forward_mode.is_decode() or self._cascade is None:
            self._wrapper = None
        elif in_capture:
            self._wrapper = self._cascade.capture(rows) if _variant() == SHARED else None
        elif self._selected is None:
            self._wrapper = None
        else:
            lengths = forward_batch.seq_lens_cpu[: len(rows)].tolist()
            self._wrapper = self._cascade.replay(self._selected, rows, lengths)
        if self._wrapper is None:
            super().init_forward_metadata_out_graph(forward_batch, in_capture)

    def select(self, forward_batch: Any) -> str:
        """Which graph to replay for a batch."""
        self._selected = self._plan(forward_batch)
        return PLAIN if self._selected is None else SHARED

    def forward_decode(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True, **named: Any
    ) -> Tensor:
        """[rows, query heads x size] of the same."""
        if self._wrapper is None:
            return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache, **named)
        if save_kv_cache and k is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        queries = q.contiguous().view(-1, layer.tp_q_head_num, layer.head_dim)
        output: Tensor = self._wrapper.run(queries, self.token_to_kv_pool.get_kv_buffer(layer.layer_id))
        return output.view(-1, layer.tp_q_head_num * layer.head_dim)

    def _plan(self, forward_batch: Any) -> Sharing | None:
        """The plan of a decode batch; None: upstream's path."""
        lengths = forward_batch.seq_lens_cpu
        if self._cascade is None or not forward_batch.forward_mode.is_decode() or lengths is None:
            return None
        plan = self.plans.plan(forward_batch, lengths.tolist())
        return plan if plan.ranges else None


class CascadeGraphs:
    """SGLang's ``AttentionGraphVariants``: it captures a graph of each label, and asks which one to replay."""

    capture_labels: ClassVar[tuple[str, ...]] = (PLAIN, SHARED)

    def __init__(self, backend: CascadeCudaBackend) -> None:
        self._backend = backend

    def select(self, forward_batch: Any) -> str:
        return self._backend.select(forward_batch)

    @staticmethod
    def follow(backend: CascadeCudaBackend) -> None:
        """Have the runner that captures graphs in this process, which is made after its backend, capture both.

        SGLang makes variants by the model alone; where it makes some, they stay, and graphs are upstream's alone.
        """
        from sglang.srt.model_executor.runner import decode_cuda_graph_runner as module

        original: Callable[..., Any] = module.create_attention_graph_variants
        module.create_attention_graph_variants = lambda *args, **named: (
            original(*args, **named) or CascadeGraphs(backend)
        )


def without_sharing(runner: Any, backend: Any) -> str | None:
    """Why the cascade cannot do this model's decode; None: it can.

    It takes one scale and one head count for all layers, no scales of a quantised cache, and no window. Each of these
    decodes as upstream does.
    """
    layers = [each for each in runner.model.modules() if isinstance(each, RadixAttention)]
    updater = backend.indices_updater_decode
    size = updater.q_data_type.itemsize
    if not runner.spec_algorithm.is_none():
        return "speculative decoding verifies several tokens a row"
    if backend.num_wrappers != 1 or any((each.sliding_window_size or -1) > -1 for each in layers):
        return "the model has layers with a sliding window, or with cross-attention"
    if backend.kv_index_translator.reads_are_translated:
        return "the slots of this KV cache are not those of its table"
    if updater.data_type not in (torch.float16, torch.bfloat16):
        return f"the KV cache is of {updater.data_type}, whose scales the cascade does not take"
    if any(each.logit_cap > 0 for each in layers):
        return "the model caps its logits"
    if len({(each.scaling, each.tp_q_head_num, each.tp_k_head_num, each.head_dim) for each in layers}) != 1:
        return "its attention layers differ"
    if updater.num_qo_heads * updater.head_dim > 1024 * max(16 // size, updater.head_dim // 32):
        return f"FlashInfer cannot merge the results of {updater.num_qo_heads} heads in one block of threads"
    return None


def shape_of(runner: Any, updater: Any) -> Shape:
    """What FlashInfer is told of the model, as upstream's ``FlashInferIndicesUpdaterDecode`` has it."""
    scale = next(each.scaling for each in runner.model.modules() if isinstance(each, RadixAttention))
    return Shape(
        updater.num_qo_heads, updater.num_kv_heads, updater.head_dim, scale, updater.q_data_type, updater.data_type
    )


def costs_of(kv_heads: int, head_size: int, element: int) -> Costs:
    """What sharing costs on a GPU. Estimated from two public measurements, not measured here.

    A cascade of two levels launches twice more than a plain decode, and merges two results: 7 µs lost at one KV head
    (8 rows of 4,000 tokens) and 29 µs won at eight (flashinfer #595), and a floor of 90 µs on an older card, with the
    break-even near 200 shared tokens at 128 rows (TensorRT-LLM #14396). A price of 25 µs at 2 TB/s declines the first,
    takes the second, and takes 128 rows of eight heads from 100 tokens on. Every further range is a few blocks of
    threads in launches that take place anyway.
    """
    return Costs.of(kv_bytes=2 * kv_heads * head_size * element, bandwidth=2e12, plan=25e-6, range=1e-6, levels=3)


def _variant() -> str | None:
    from sglang.srt.model_executor.runner_utils.capture_mode import get_capture_attention_variant

    label: str | None = get_capture_attention_variant()
    return label
