"""What handing a key of four million tokens to the index needs for a moment, by container, in bytes of this process.

``python -m tests.core.peak`` prints it as JSON. In a process of its own, because one that has freed as much before
gives that out again, and a copy would not show.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from feather_sglang._cht import Index


def containers() -> dict[str, Any]:
    """The same tokens."""
    numbers = np.arange(4_000_000, dtype=np.int64) * 7919 % 128_000
    return {"numpy": numbers, "array": array("q", numbers.tobytes()), "list": numbers.tolist()}


def peak_bytes(call: Callable[[], object]) -> int:
    """Memory that ``call`` needs for a moment, above what the process has."""
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    call()
    return _resident("VmHWM") - before


def _resident(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    index = Index(
        chunk_size=64,
        page_size=1,
        order="held",
        aging=0.0,
        barrier_min=256,
        max_wait_tokens=1000,
        kv_capacity=1 << 40,
        hash_key=(1, 2),
    )
    peaks = {}
    for id, (name, tokens) in enumerate(containers().items()):
        index.insert(id, [tokens[:1000]], length=1000, arrival=(0, id))  # what is allocated once is there
        index.leave(id, False)
        insert = lambda: index.insert(id, [tokens], length=len(tokens), arrival=(0, id))  # noqa: B023, E731
        peaks[name] = peak_bytes(insert)
        if id:
            index.leave(id, False)
        else:
            index.activate(id)
            index.publish(id, len(tokens), False)
    print(json.dumps(peaks))


if __name__ == "__main__":
    main()
