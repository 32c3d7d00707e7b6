"""What a server counts itself: SGLang's own metrics, the same for every policy."""

from __future__ import annotations

import time
import urllib.request
from typing import NamedTuple

SERVER_ARGS = ["--enable-metrics", "--decode-log-interval", "1"]
"""What a server needs to count every forward pass (by default it counts every 40th decode)."""

_PASSES = "sglang:cuda_graph_passes_total"  # with or without a graph: the label ``mode`` says so
_TOKENS = "sglang:realtime_tokens_total"


class Counters(NamedTuple):
    """Totals since the start of a server."""

    prefill_steps: int = 0
    """Forward passes with prefill tokens in them."""
    decode_steps: int = 0
    """Forward passes without."""
    prefill_tokens: int = 0
    """Prompt tokens computed, those of retracted requests again."""

    def since(self, before: Counters) -> Counters:
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))


def read(url: str) -> Counters:
    """The counters of an idle server. The last pass is counted after its tokens are sent, so reads until they stand."""
    counters = _read(url)
    while True:
        time.sleep(0.3)
        before, counters = counters, _read(url)
        if counters == before:
            return counters


def _read(url: str) -> Counters:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as response:
        return parse(response.read().decode())


def parse(text: str) -> Counters:
    """:param text: the answer of ``/metrics``."""
    from prometheus_client.parser import text_string_to_metric_families

    totals = {"prefill_steps": 0, "decode_steps": 0, "prefill_tokens": 0}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            mode = sample.labels.get("mode", "")
            if sample.name == _PASSES:
                totals["prefill_steps" if mode.startswith("prefill") else "decode_steps"] += int(sample.value)
            elif sample.name == _TOKENS and mode == "prefill_compute":
                totals["prefill_tokens"] += int(sample.value)
    return Counters(**totals)
