"""Mooncake traces: lengths, arrival times and the chained ids of 512-token blocks; no text."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from feather_sglang.bench.workloads import Request, Tokenizer, Workload, files
from feather_sglang.bench.workloads.recorded import Recorded, Wishes, workload
from feather_sglang.simulate.traces.mooncake import BLOCK, entry


def mooncake(path: Path, tokenizer: Tokenizer, wishes: Wishes) -> Workload:
    """Prompts of the recorded sharing: equal block ids, equal tokens, random but for that.

    Blocks have their real size if the longest request fits the context; else all lengths, blocks and outputs too, are
    scaled by one factor so that it does, which keeps who shares how much with whom.

    :raises TraceError: if a line is damaged.
    """
    lines = files.lines_of(path)[: wishes.requests]
    found = [entry(line) for line in lines]
    longest = max(each.length + (wishes.output_tokens or each.output) for each in found)
    scale = min(1.0, wishes.context / longest)
    if wishes.output_tokens is not None and longest > wishes.context:  # outputs that were asked for are not scaled
        scale = max(wishes.context - wishes.output_tokens, 1) / max(each.length for each in found)
    size = max(int(BLOCK * scale), 1)
    scale = size / BLOCK  # whole tokens in a block

    @cache
    def block(id: int) -> list[int]:
        return random.Random(id).choices(tokenizer.plain, k=size)

    recorded = []
    for line, each in zip(lines, found, strict=True):
        blocks = len(each.blocks)
        length = max(int(each.length * scale), size * (blocks - 1) + 1)  # the last block has a token at least
        prompt = [token for id in each.blocks for token in block(id)][:length]
        # The first block is one system prompt for all: the second tells conversations apart.
        family = str(each.blocks[min(1, blocks - 1)])
        request = Request(prompt, max(int(each.output * scale), 1), family, each.seconds)
        recorded.append(Recorded(line.where, request))
    name = f"{path.name}, {len(lines)} requests" + (f", lengths x {scale:.3g}" if scale < 1 else "")
    return workload(name, recorded, wishes, timed=True)
