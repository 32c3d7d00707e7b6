"""Mooncake traces: lengths, arrival times and the chained ids of 512-token blocks; no text."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import NamedTuple

from feather_sglang.bench.workloads import Request, Tokenizer, Workload, files
from feather_sglang.bench.workloads.recorded import Recorded, Wishes, workload
from feather_sglang.simulate.traces.lines import Line
from feather_sglang.simulate.traces.mooncake import BLOCK


class _Recorded(NamedTuple):
    """One line; lengths in tokens."""

    where: str
    seconds: float
    prompt: int
    output: int
    blocks: list[int]


def mooncake(path: Path, tokenizer: Tokenizer, wishes: Wishes) -> Workload:
    """Prompts of the recorded sharing: equal block ids, equal tokens, random but for that.

    Blocks have their real size if the longest request fits the context; else all lengths, blocks and outputs too, are
    scaled by one factor so that it does, which keeps who shares how much with whom.

    :raises TraceError: if a line is damaged.
    """
    lines = [_recorded(line) for line in files.lines_of(path)[: wishes.requests]]
    longest = max(line.prompt + (wishes.output_tokens or line.output) for line in lines)
    scale = min(1.0, wishes.context / longest)
    if wishes.output_tokens is not None and longest > wishes.context:  # outputs that were asked for are not scaled
        scale = max(wishes.context - wishes.output_tokens, 1) / max(line.prompt for line in lines)
    size = max(int(BLOCK * scale), 1)
    scale = size / BLOCK  # whole tokens in a block

    @cache
    def block(id: int) -> list[int]:
        return random.Random(id).choices(tokenizer.plain, k=size)

    recorded = []
    for line in lines:
        blocks = len(line.blocks)
        length = max(int(line.prompt * scale), size * (blocks - 1) + 1)  # the last block has a token at least
        prompt = [token for id in line.blocks for token in block(id)][:length]
        # The first block is one system prompt for all: the second tells conversations apart.
        family = str(line.blocks[min(1, blocks - 1)])
        request = Request(prompt, max(int(line.output * scale), 1), family, line.seconds)
        recorded.append(Recorded(line.where, request))
    name = f"{path.name}, {len(lines)} requests" + (f", lengths x {scale:.3g}" if scale < 1 else "")
    return workload(name, recorded, wishes, timed=True)


def _recorded(line: Line) -> _Recorded:
    length, blocks = line.whole("input_length", 1), line.wholes("hash_ids")
    if len(blocks) != -(-length // BLOCK):
        raise line.wrong(f"there are {len(blocks)} hash_ids for {length:,} tokens", f"one for each {BLOCK} tokens")
    return _Recorded(line.where, line.number_of("timestamp") / 1000, length, line.whole("output_length"), blocks)
