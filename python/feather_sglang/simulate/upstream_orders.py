"""How SGLang 0.5.23 orders its waiting queue: ``managers/schedule_policy.py``, class ``SchedulePolicy``, rule by rule.

Each rule sorts a queue in place, and stably, as there: what a rule leaves equal stays as the pass before left it. What
is shared is counted in whole levels; a prompt's tokens beyond its levels are taken to be its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from feather_sglang.core.interface import Buffer
from feather_sglang.simulate.pool import Pool, leading

MATCHED_MOST = 128
"""``WAITING_QUEUE_PREFIX_MATCH_MAX``: with more requests waiting, LPM and HRRN leave the queue as it is."""
COLD = 32
"""``IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD``, and ``..._DEPRIORITIZE_THRESHOLD``, in tokens."""


class Waiting:
    """A waiting request."""

    __slots__ = ("arrived", "id", "label", "length", "levels", "matched", "reserve", "rid", "sequence")

    def __init__(
        self,
        id: int,
        levels: Sequence[int] | Buffer,
        length: int,
        reserve: int = 0,
        arrived: int = 0,
        sequence: int = 0,
        label: str | None = None,
        rid: str | None = None,
    ) -> None:
        self.id = id
        self.levels = levels
        self.length = length
        self.reserve = reserve
        """KV tokens that are set aside for its output."""
        self.arrived = arrived
        """Tokens that had been prefilled when it arrived."""
        self.sequence = sequence
        self.label = label
        """What a client may send as ``routing_key``."""
        self.rid = scrambled(id) if rid is None else rid
        self.matched = 0
        """Levels that the cache held when it was last asked."""


def scrambled(id: int) -> str:
    """An id as SGLang draws them (``uuid4().hex``): some rules break ties by it, and so at random. SplitMix64."""
    mask = (1 << 64) - 1
    z = (id + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return f"{z ^ z >> 31:016x}"


class Circumstances(NamedTuple):
    """What a rule may look at besides the queue."""

    cache: Pool
    running: Mapping[str, int]
    """Rows by label; of those that have one."""
    processed: int
    """Tokens prefilled so far."""


Rule = Callable[[list[Waiting], Circumstances], None]


def fcfs(queue: list[Waiting], now: Circumstances) -> None:
    """``fcfs``: as they came."""


def lpm(queue: list[Waiting], now: Circumstances) -> None:
    """``_sort_by_longest_prefix``: most tokens in the cache first; what waits for a sibling last."""
    later = match(queue, now.cache)
    queue.sort(key=lambda r: float("inf") if r.id in later else -matched_tokens(r, now.cache))


def hrrn(queue: list[Waiting], now: Circumstances) -> None:
    """``_sort_by_hrrn``: most tokens prefilled since it arrived for each token it must prefill itself; ties by rid."""
    later = match(queue, now.cache)

    def key(r: Waiting) -> tuple[float, str]:
        if r.id in later:
            return float("inf"), r.rid
        uncached = r.length - matched_tokens(r, now.cache)
        return -(max(0, now.processed - r.arrived) / uncached), r.rid

    queue.sort(key=key)


def shortest_prefill_first(queue: list[Waiting], now: Circumstances) -> None:
    """``_sort_by_shortest_prefill``: fewest tokens to prefill, then arrival; what waits for a sibling last."""
    later = match(queue, now.cache)
    queue.sort(key=lambda r: (r.id in later, r.length - matched_tokens(r, now.cache), r.sequence))


def dfs_weight(queue: list[Waiting], now: Circumstances) -> None:
    """``_sort_by_dfs_weight`` and ``mem_cache/base_prefix_cache.py``, ``_dfs_weight_order``.

    Depth first through the cached prefixes, the branch with most waiting requests first, the older of equal ones; a
    node's own requests after those of its branches.
    """
    match(queue, now.cache)
    own: dict[int, list[Waiting]] = {}
    for request in queue:
        own.setdefault(request.levels[request.matched - 1] if request.matched else _ROOT, []).append(request)
    children: dict[int, dict[int, None]] = {}
    weights: Counter[int] = Counter()
    for requests in own.values():
        parent = _ROOT
        for level in requests[0].levels[: requests[0].matched]:
            children.setdefault(parent, {})[level] = None
            weights[level] += len(requests)
            parent = level
    queue.clear()
    stack = [(_ROOT, False)]
    while stack:
        node, visited = stack.pop()
        if visited:
            queue.extend(own.get(node, ()))
            continue
        stack.append((node, True))
        branches = sorted(children.get(node, ()), key=lambda level: (-weights[level], now.cache.published_as(level)))
        stack.extend((level, False) for level in reversed(branches))


def routing_key(queue: list[Waiting], now: Circumstances) -> None:
    """``_sort_by_routing_key``: labels that most running requests have, then by label; nothing if none of them has."""
    if not now.running:
        return

    def key(r: Waiting) -> tuple[int, int, str]:
        if r.label and r.label in now.running:
            return 0, -now.running[r.label], r.label
        return 1, 0, r.label or ""

    queue.sort(key=key)


def match(queue: Sequence[Waiting], cache: Pool) -> set[int]:
    """``_compute_prefix_matches``: asks the cache for all; the ids of those that had better wait for a sibling.

    Of requests that the cache holds next to nothing of, and that share a prefix, only the first is not put off.
    """
    later: set[int] = set()
    cold: set[int] = set()
    for request in queue:
        request.matched = cache.match(request.levels)
        if request.matched * cache.level_tokens > COLD:
            continue
        if leading(request.levels, cold) * cache.level_tokens >= COLD:
            later.add(request.id)
        else:
            cold.update(request.levels)
    return later


def matched_tokens(request: Waiting, cache: Pool) -> int:
    """The last token of a prompt is always computed."""
    return min(request.matched * cache.level_tokens, request.length - 1)


_ROOT = -1

RULES: dict[str, tuple[Rule, float]] = {
    "fcfs": (fcfs, 0),
    "lpm": (lpm, MATCHED_MOST),
    "lpm-lifted": (lpm, float("inf")),
    "dfs-weight": (dfs_weight, float("inf")),
    "hrrn": (hrrn, MATCHED_MOST),
    "hrrn-lifted": (hrrn, float("inf")),
    "shortest-prefill-first": (shortest_prefill_first, float("inf")),
    "routing-key": (routing_key, float("inf")),
}
"""By name: the rule, and the longest queue that it sorts (``_determine_active_policy``); ``-lifted``: any queue."""


def sort(policy: str, queue: list[Waiting], now: Circumstances) -> None:
    """``calc_priority``: one pass of a policy over the queue, which it leaves as it is where it is too long for it."""
    rule, most = RULES[policy]
    if len(queue) <= most:
        rule(queue, now)
