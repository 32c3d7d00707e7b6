"""The policy's Prometheus metrics, next to SGLang's own under ``--enable-metrics``.

Histograms are fed as things happen; everything else is copied from the scheduler's record when SGLang writes its own
gauges, at most once a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from feather_sglang.sglang.watch import FALLBACKS, STOPS

if TYPE_CHECKING:
    from feather_sglang.sglang.adapter import Adapter

PREFIX = "sglang:feather_"

REFRESH_SECONDS = 1.0

GATE_VALUES = 24
"""Figures of a gate that are shown at most."""


class Metric(NamedTuple):
    """One metric; ``help`` says what it means and what to do about it."""

    kind: str
    name: str
    help: str
    label: str | None = None
    buckets: tuple[float, ...] = ()


METRICS: tuple[Metric, ...] = (
    Metric("counter", "admitted", "Requests that the policy planned and SGLang took."),
    Metric(
        "counter",
        "refused",
        "Requests that the policy planned and SGLang did not take. A few are normal (adapters, memory that was "
        "reserved meanwhile); if they grow as fast as admissions, report the decision log (--feather-log).",
    ),
    Metric(
        "counter",
        "barrier_waits",
        "Each request once for each pass that held it back, because what it needs was being computed. Growth without a "
        "growing cache hit rate means that waiting does not pay: raise --feather-barrier-min.",
    ),
    Metric(
        "counter",
        "gate_decisions",
        "Passes in which the gate was asked, by answer: all (admit every candidate) or stop. Always 0 with the gate "
        "never. Many stops with a long queue: compare throughput with `feather set gate=never`.",
        "answer",
    ),
    Metric(
        "counter",
        "stops",
        "Passes whose plan ended before rows, memory and candidates did, by reason: gate; kept (rows are kept for "
        "requests held back); room (memory is kept for the oldest request); looked (too many that do not fit). Many of "
        "room: the KV pool is small for the longest prompts.",
        "reason",
    ),
    Metric(
        "counter",
        "fallbacks",
        "Errors and fall-backs, by reason. stands_back, gave_up: served first come, first served, see the log; "
        "core_rebuilt: the policy recovered, report the traceback; unreadable_request: that request shared nothing; "
        "log_off, recording_off, state_not_saved: mend the disk. Alert on any growth.",
        "reason",
    ),
    Metric("gauge", "waiting", "Waiting requests, those held back included."),
    Metric(
        "gauge",
        "held",
        "Waiting requests held back now, because what they need is being computed. It falls within a few passes; if it "
        "stays high, prefill is the bottleneck.",
    ),
    Metric("gauge", "running", "Running rows as the policy sees them; SGLang's own count may be one pass ahead."),
    Metric(
        "gauge",
        "families_waiting",
        "Families (requests that share a prefix beyond what most have in common) in the queue. More than fit at once: "
        "each waits for its turn.",
    ),
    Metric("gauge", "families_running", "Families in the batch. Fewer families share more KV."),
    Metric("gauge", "waiting_alone", "Waiting requests that share with no other: the policy cannot help them."),
    Metric(
        "gauge",
        "oldest_age_tokens",
        "Tokens scheduled since the oldest waiting request arrived. At the bound (--feather-max-wait) it goes before "
        "all that came later, whatever order and gate say; often near it: add capacity, or lower the bound.",
    ),
    Metric("gauge", "max_wait_tokens", "The fairness bound, in scheduled tokens."),
    Metric(
        "gauge",
        "length_error",
        "By how much the predicted output lengths of the last 1,024 requests missed, as a share of their output; 0 "
        "without --feather-lanes. Towards 1, lanes are noise: try another --feather-length, or --feather-lanes 1.",
    ),
    Metric("gauge", "tip_tokens", "Tokens that all running rows have in common. 0 with one unrelated row."),
    Metric("gauge", "total_kv_tokens", "KV tokens of the running rows, shared ones counted for each row."),
    Metric(
        "gauge",
        "distinct_kv_tokens",
        "KV tokens of the running rows, shared ones counted once. Near total_kv_tokens: nothing is shared, and the "
        "policy cannot pay.",
    ),
    Metric("gauge", "cached_tokens", "Tokens of finished requests that the index remembers as reusable."),
    Metric("gauge", "index_bytes", "Memory of the index, in bytes. It should follow the queue; report it if not."),
    Metric(
        "counter",
        "prompt_tokens",
        "Prompt tokens of admitted requests by source: reused (found in the cache) or computed.",
        "source",
    ),
    Metric(
        "gauge",
        "reward",
        "What the gate maximises, as it measured it last (see the gate in docs/design/gates.md); 0 for gates that "
        "learn nothing. A lasting fall after a gate change: `feather set gate=never`.",
    ),
    Metric(
        "gauge",
        "gate_value",
        "What the gate has learned: coefficients and estimates by their names in docs/design/gates.md. They should "
        "settle within minutes; `feather state reset` forgets them.",
        "value",
    ),
    Metric(
        "gauge",
        "longest_wait_seconds",
        "Longest wait for admission of the last minute, by namespace (default; n1, n2 ... in order of appearance; "
        "other). One far above the rest is starved: lower --feather-max-wait.",
        "namespace",
    ),
    Metric(
        "histogram",
        "wait_seconds",
        "Time from arrival to first admission, by prefix: reused (at least half of the prompt was in the cache) or "
        "computed. If only computed ones wait, families push loners back: lower --feather-max-wait.",
        "prefix",
        (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
    ),
    Metric(
        "histogram",
        "policy_seconds",
        "Time that the policy took per pass of the scheduler, arrivals since the last included. It should stay under "
        "1% of a step; if not, report it with the queue's length.",
        None,
        (10e-6, 30e-6, 100e-6, 300e-6, 1e-3, 3e-3, 10e-3, 30e-3, 0.1),
    ),
)

_VALUES: dict[str, Iterable[str]] = {
    "answer": ("all", "stop"),
    "reason": STOPS,
    "source": ("reused", "computed"),
    "prefix": ("reused", "computed"),
}


class Metrics:
    """The metrics of one scheduler.

    :param collector: SGLang's ``SchedulerMetricsCollector``, whose labels they carry too.
    """

    def __init__(self, collector: Any) -> None:
        # Imported late: SGLang sets the folder for several processes first.
        from prometheus_client import Counter, Gauge, Histogram

        self.adapter: Adapter | None = None
        """Whose record is copied."""
        self._labels: dict[str, Any] = dict(collector.labels)
        self._counted: dict[tuple[str, str | None], float] = {}
        self._refreshed = 0.0
        self._made: dict[str, Any] = {}
        for metric in METRICS:
            name, labels = PREFIX + metric.name, [*self._labels, *([metric.label] if metric.label else [])]
            if metric.kind == "counter":
                made = (collector._counter_cls or Counter)(name, metric.help, labels)
            elif metric.kind == "gauge":
                gauge = collector._gauge_cls or Gauge
                made = gauge(name, metric.help, labels, multiprocess_mode="mostrecent")
            else:
                made = (collector._histogram_cls or Histogram)(name, metric.help, labels, buckets=metric.buckets)
            self._made[metric.name] = made
            values = FALLBACKS if metric.name == "fallbacks" else _VALUES.get(metric.label or "", ())
            if metric.label is None:
                self._of(metric.name)
            for value in values:  # so that they are seen at 0, and a first event is growth
                self._of(metric.name, value)
        self._policy_seconds = self._of("policy_seconds")
        self._wait_seconds = {reused: self._of("wait_seconds", _source(reused)) for reused in (True, False)}

    def waited(self, seconds: float, mostly_reused: bool) -> None:
        """A request was admitted for the first time."""
        self._wait_seconds[mostly_reused].observe(seconds)

    def passed(self, seconds: float) -> None:
        """A pass is over."""
        self._policy_seconds.observe(seconds)

    def stood_back(self) -> None:
        """The policy was chosen and does not work."""
        self._of("fallbacks", "stands_back").inc()

    def refresh(self) -> None:
        """Copy the record, unless that was done a moment ago, but when idle: it stands for long."""
        adapter, now = self.adapter, time.monotonic()
        if adapter is None:
            return
        if adapter.book.running and now - self._refreshed < REFRESH_SECONDS:
            return
        self._refreshed = now
        watch = adapter.watch
        answer = adapter.ask(lambda core: (core.state(), core.families(0), core.gate.state()))
        for reason, count in watch.fallbacks.items():
            self._count("fallbacks", count, reason)
        if answer is None:
            for metric in METRICS:
                if metric.kind == "gauge" and metric.label is None:
                    self._set(metric.name, 0)
            return
        state, families, learned = answer
        chunk = adapter.settings.chunk_size
        for name, number in {
            "waiting": len(adapter.book.waiting) + len(adapter.book.express),
            "held": state["held"],
            "running": state["running"],
            "families_waiting": families["families_waiting"],
            "families_running": families["families_running"],
            "waiting_alone": families["waiting_alone"],
            "oldest_age_tokens": state["oldest_tokens"],
            "max_wait_tokens": state["max_wait_tokens"],
            "tip_tokens": state["tip_chunks"] * chunk,
            "total_kv_tokens": state["total_kv"],
            "distinct_kv_tokens": state["distinct_kv"],
            "cached_tokens": state["cached_tokens"],
            "index_bytes": state["bytes"],
            "length_error": state.get("length_error") or 0.0,
            "reward": learned.get("reward") or 0.0,
        }.items():
            self._set(name, number)
        for name in ("admitted", "refused", "barrier_waits"):
            self._count(name, state[name])
        for reason, count in watch.stops.items():
            self._count("stops", count, reason)
        self._count("gate_decisions", watch.stops["gate"], "stop")
        self._count("gate_decisions", watch.asked - watch.stops["gate"], "all")
        self._count("prompt_tokens", watch.reused_tokens, "reused")
        self._count("prompt_tokens", watch.prompt_tokens - watch.reused_tokens, "computed")
        for namespace, group in watch.waits.namespaces.items():
            self._set("longest_wait_seconds", group.longest.value(now), namespace)
        for name, value in numbers_of(learned):
            self._set("gate_value", value, name)

    def _of(self, name: str, value: str | None = None) -> Any:
        metric = self._made[name]
        labels = dict(self._labels)
        if value is not None:
            labels[metric._labelnames[-1]] = value
        return metric.labels(**labels)

    def _set(self, name: str, number: float, value: str | None = None) -> None:
        self._of(name, value).set(number)

    def _count(self, name: str, total: float, value: str | None = None) -> None:
        """Bring a counter to a total of the record, which begins at 0 again when the record does."""
        counted = self._counted.get((name, value), 0)
        if total != counted:
            self._of(name, value).inc(total - counted if total > counted else total)
            self._counted[name, value] = total


def numbers_of(learned: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """The numbers of a gate's state by dotted name, the first ``GATE_VALUES`` of them."""
    found: list[tuple[str, float]] = []
    for name, value in learned.items():
        if isinstance(value, Mapping):
            found += numbers_of(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            found.append((prefix + str(name), float(value)))
    return found[:GATE_VALUES]


def metrics_of(scheduler: Any) -> Metrics | None:
    """The metrics of a scheduler that shows metrics, made once; None: it shows none."""
    context = getattr(scheduler, "metrics_collector_context", None)
    if context is None or not context.current_scheduler_metrics_enabled or context.collector is None:
        return None
    collector = context.collector
    if "feather" not in collector.__dict__:
        collector.feather = Metrics(collector)
    metrics: Metrics = collector.feather
    return metrics


def _source(reused: bool) -> str:
    return "reused" if reused else "computed"
