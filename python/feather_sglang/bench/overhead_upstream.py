"""SGLang's own policies on its own prefix trees."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("SGLANG_PLATFORM", "feather_cpu")

import sglang.srt.managers.schedule_policy as schedule_policy
import torch
import xxhash
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.tree_core_registry import resolve_tree_core_backend
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import publish
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs

from feather_sglang.bench.overhead_prompts import VOCABULARY
from feather_sglang.cli.errors import UsageError

AS_SHIPPED = schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX
"""Waiting requests above which LPM and HRRN are first come, first served."""
LIFTED = 1 << 40

# Name: (policy, cap on the waiting requests that are matched).
POLICIES = {
    "lpm": ("lpm", LIFTED),
    "lpm as shipped": ("lpm", AS_SHIPPED),
    "dfs-weight": ("dfs-weight", LIFTED),
    "hrrn": ("hrrn", LIFTED),
    "fcfs": ("fcfs", AS_SHIPPED),
}
TREES = ("rust", "python")


# No model is loaded; server arguments have to name one whose configuration can be read.
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": 1 << 20,
    "vocab_size": VOCABULARY,
}


def configure() -> None:
    """Publish the configuration that policies and trees look up, once in a process."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(_MODEL))
        args = ServerArgs(model_path=folder, device="cpu", attention_backend="torch_native", skip_tokenizer_init=True)
        publish(args, role="scheduler")


class _NoPool:
    """In place of a KV pool: a tree frees what it was given twice, and nothing else is asked of it."""

    device = "cpu"
    page_size = 1

    def free_segment(self, *args: Any, **kwargs: Any) -> None: ...
    def free_segments(self, *args: Any, **kwargs: Any) -> None: ...
    def free(self, *args: Any, **kwargs: Any) -> None: ...


class Upstream:
    """One waiting queue, and trees that hold the prefixes of its families."""

    def __init__(self, prefixes: Iterable[array[int]], prompts: Iterable[array[int]], trees: Iterable[str]) -> None:
        sampling = SamplingParams(max_new_tokens=128)
        self._requests = []
        for i, prompt in enumerate(prompts):
            request = Req(
                rid=str(i),
                origin_input_text="",
                origin_input_ids=prompt,
                sampling_params=sampling,
                vocab_size=VOCABULARY,
            )
            request.arrival_processed_tokens = 0
            self._requests.append(request)
        self._trees = {kind: make_tree(kind, prefixes) for kind in trees}
        self._tokens = prompt
        self._one = RadixKey(token_ids=prompt, extra_key=None)
        self._slots = torch.arange(len(prompt), dtype=torch.int64)
        self._queues: dict[tuple[str, str], list[Any]] = {}
        self._policies: dict[tuple[str, str], Any] = {}

    def calls(self) -> list[tuple[str, str]]:
        """All (tree, policy); first come, first served looks at no tree."""
        return [(tree, name) for tree in self._trees for name in POLICIES if name != "fcfs" or tree == "rust"]

    def is_first_come(self, name: str) -> bool:
        """Whether this policy does not look at the tree, the queue being as long as it is."""
        policy, cap = POLICIES[name]
        return policy == "fcfs" or (policy in ("lpm", "hrrn") and len(self._requests) > cap)

    def order(self, tree: str, name: str) -> None:
        """One pass of a policy over the whole queue, as the scheduler makes it."""
        policy, cap = POLICIES[name]
        key = tree, name
        if key not in self._policies:
            self._policies[key] = schedule_policy.SchedulePolicy(policy, self._trees[tree], False, False, False)
            self._queues[key] = list(self._requests)
        schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX = cap
        try:
            self._policies[key].calc_priority(self._queues[key], None, processed_tokens=1_000_000)
        finally:
            schedule_policy.WAITING_QUEUE_PREFIX_MATCH_MAX = AS_SHIPPED

    def match_first(self, tree: str, count: int) -> None:
        """The matches that admitting ``count`` requests needs, whatever ordered them."""
        for request in self._requests[:count]:
            request.init_next_round_input(self._trees[tree])

    def match_one(self) -> None:
        """The Rust core of the tree alone finds what it holds of the last prompt."""
        self._trees["rust"].tree_core.match_full_device_prefix(self._one)

    def insert_one(self) -> None:
        """The last prompt enters the Rust tree, as when its prefill is done; at first as new, then as there already."""
        self._trees["rust"].insert(InsertParams(key=self._one, value=self._slots))

    def hash_one(self) -> None:
        """One hash of the last prompt, by the library that SGLang brings."""
        xxhash.xxh3_64_intdigest(self._tokens)


def make_tree(kind: str, prefixes: Iterable[array[int]]) -> Any:
    """A prefix cache of SGLang's that holds these; ``kind``: one of ``TREES``."""
    params = CacheInitParams(
        disable=False, req_to_token_pool=None, token_to_kv_pool_allocator=_NoPool(), page_size=_NoPool.page_size
    )
    if kind == "python":
        tree = RadixCache(params)
    else:
        params.tree_components = (ComponentType.FULL,)
        params.tree_core_backend = kind
        used = resolve_tree_core_backend(kind, params)
        if used != kind:
            raise UsageError(
                f"SGLang would put its {used} tree in place of the {kind} one here, so they cannot be compared"
            )
        tree = UnifiedRadixCache(params)
    for prefix in prefixes:
        key = RadixKey(token_ids=prefix, extra_key=None)
        tree.insert(InsertParams(key=key, value=torch.arange(len(prefix), dtype=torch.int64)))
    return tree
