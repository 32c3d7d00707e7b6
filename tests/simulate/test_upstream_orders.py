"""The simulated baselines order a queue as SGLang's own ``SchedulePolicy`` does, on its own prefix trees."""

from __future__ import annotations

import random
from array import array
from collections import Counter

import pytest

from feather_sglang.bench import overhead_upstream  # before SGLang: it names the platform

from sglang.srt.managers.schedule_batch import Req, ScheduleBatch  # isort: skip
from sglang.srt.mem_cache.base_prefix_cache import InsertParams  # isort: skip
from feather_sglang.simulate import upstream_orders
from feather_sglang.simulate.pool import Pool
from feather_sglang.simulate.upstream_orders import RULES, Circumstances, Waiting, sort
from tests.harness import pool as schedulers

pytestmark = pytest.mark.slow

LEVEL = 64
VOCABULARY = overhead_upstream.VOCABULARY


@pytest.fixture(scope="module", autouse=True)
def configured():
    schedulers.discard()  # a process has one configuration
    overhead_upstream.configure()


class Both:
    """One queue in two forms: SGLang's requests over its tree, and ours over the simulated pool."""

    def __init__(self, policy: str, tree: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.policy = policy
        self.tree = overhead_upstream.make_tree(tree, [])
        self.pool = Pool(1 << 20, LEVEL)
        name = policy.removesuffix("-lifted")
        self.theirs = overhead_upstream.schedule_policy.SchedulePolicy(name, self.tree, False, False, False)
        self.queue: list[Req] = []
        self.ours: list[Waiting] = []
        self.running: list[Req] = []
        self.processed = 0
        self.ids = iter(range(1 << 20))
        # Families and families of families: a path is a list of levels, each the child of the one before.
        self.paths = [[]]
        for level in range(60):
            self.paths.append([*self.rng.choice(self.paths), level])

    def tokens(self, path: list[int]) -> list[int]:
        return [level * LEVEL + i for level in path for i in range(LEVEL)]

    def arrive(self) -> None:
        id, path = next(self.ids), self.rng.choice(self.paths)
        own = [30_000 + id] * self.rng.choice([1, 1, 40, 500])
        label = self.rng.choice([None, "a", "b", "c", "d"])
        request = Req(
            rid=f"{self.rng.getrandbits(64):016x}",
            origin_input_text="",
            origin_input_ids=array("q", self.tokens(path) + own),
            sampling_params=overhead_upstream.SamplingParams(max_new_tokens=8),
            vocab_size=VOCABULARY,
            routing_key=label,
        )
        request.arrival_processed_tokens = self.processed
        request.time_stats.wait_queue_entry_time = float(id)
        self.queue.append(request)
        length = len(request.origin_input_ids)
        self.ours.append(Waiting(id, path, length, 0, self.processed, id, label, request.rid))

    def publish(self) -> None:
        path = self.rng.choice(self.paths)
        key = overhead_upstream.RadixKey(token_ids=array("q", self.tokens(path)), extra_key=None)
        if path:
            value = overhead_upstream.torch.arange(len(key), dtype=overhead_upstream.torch.int64)
            self.tree.insert(InsertParams(key=key, value=value))
            self.pool.publish(path)

    def admit(self, n: int) -> None:
        self.running = self.queue[:n] + self.running[: 2 * n]
        del self.queue[:n], self.ours[:n]
        self.processed += self.rng.randrange(2_000)

    def compare(self) -> None:
        batch = ScheduleBatch(reqs=self.running)
        self.theirs.calc_priority(self.queue, batch, processed_tokens=self.processed)
        labels = Counter(r.routing_key for r in self.running if r.routing_key)
        sort(self.policy, self.ours, Circumstances(self.pool, labels, self.processed))
        assert [r.rid for r in self.ours] == [r.rid for r in self.queue]


@pytest.mark.parametrize("tree", overhead_upstream.TREES)
@pytest.mark.parametrize("policy", RULES)
def test_the_order_is_upstreams(policy, tree, monkeypatch):
    if policy.endswith("-lifted"):
        monkeypatch.setattr(overhead_upstream.schedule_policy, "WAITING_QUEUE_PREFIX_MATCH_MAX", 1 << 40)
    orders = set()
    for seed in range(4):
        both = Both(policy, tree, seed)
        for turn in range(40):
            for _ in range(both.rng.randrange(9 if turn > 8 else 30)):
                both.arrive()
            for _ in range(both.rng.randrange(3)):
                both.publish()
            both.compare()
            orders.add(tuple(r.sequence for r in both.ours) == tuple(sorted(r.sequence for r in both.ours)))
            both.admit(both.rng.randrange(8))
    assert (False in orders) == (policy != "fcfs"), "the queue was reordered, or this compared nothing"


def test_the_cap_is_upstreams():
    assert overhead_upstream.AS_SHIPPED == upstream_orders.MATCHED_MOST
    assert overhead_upstream.schedule_policy.IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD == upstream_orders.COLD
    assert overhead_upstream.schedule_policy.IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD == upstream_orders.COLD
