"""Mooncake traces: lengths, arrival times and the chained ids of 512-token blocks; no text."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

from feather_sglang.bench.workloads import Request, Tokenizer, Workload, files
from feather_sglang.bench.workloads.recorded import Recorded, Wishes, workload

BLOCK = 512
"""Tokens that one id stands for."""

_EXPECTED = "`timestamp` (ms), `input_length`, `output_length` and one of `hash_ids` for each 512 tokens of input"


def mooncake(path: Path, tokenizer: Tokenizer, wishes: Wishes) -> Workload:
    """Prompts of the recorded sharing: equal block ids, equal tokens, random but for that.

    Blocks have their real size if the longest request fits the context; else all lengths, blocks and outputs too, are
    scaled by one factor so that it does, which keeps who shares how much with whom.

    :raises UsageError: if a line is damaged.
    """
    lines = [(where, _checked(where, line)) for where, line in files.json_lines(path)][: wishes.requests]
    longest = max(line["input_length"] + (wishes.output_tokens or line["output_length"]) for _, line in lines)
    scale = min(1.0, wishes.context / longest)
    if wishes.output_tokens is not None and longest > wishes.context:  # outputs that were asked for are not scaled
        room = max(wishes.context - wishes.output_tokens, 1)
        scale = room / max(line["input_length"] for _, line in lines)
    size = max(int(BLOCK * scale), 1)

    @cache
    def block(id: int) -> list[int]:
        return random.Random(id).choices(tokenizer.plain, k=size)

    recorded = []
    for where, line in lines:
        ids = line["hash_ids"]
        length = min(max(int(line["input_length"] * scale), size * (len(ids) - 1) + 1), size * len(ids))
        prompt = [token for id in ids for token in block(id)][:length]
        # The first block is one system prompt for all: the second tells conversations apart.
        family = str(ids[min(1, len(ids) - 1)])
        output = max(int(line["output_length"] * scale), 1)
        recorded.append(Recorded(where, Request(prompt, output, family, line["timestamp"] / 1000)))
    name = f"{path.name}, {len(lines)} requests" + (f", lengths x {scale:.3g}" if scale < 1 else "")
    return workload(name, recorded, wishes, timed=True)


def _checked(where: str, line: dict[str, Any]) -> dict[str, Any]:
    ids = line.get("hash_ids")
    lengths = [line.get(name) for name in ("timestamp", "input_length", "output_length")]
    if (
        not isinstance(ids, list)
        or not all(isinstance(number, int) and number >= 0 for number in [*ids, *lengths])
        or line["input_length"] < 1
        or len(ids) != -(-line["input_length"] // BLOCK)
    ):
        files.damaged(where, _EXPECTED)
    return line
