"""On what the simulator is compared with SGLang's Scheduler: prompts of known sharing, all sent at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from feather_sglang.bench.workloads import files
from feather_sglang.bench.workloads.mooncake import mooncake
from feather_sglang.bench.workloads.recorded import Wishes
from feather_sglang.cli.errors import UsageError

FIRST, VOCABULARY = 2, 32_000
Load = list[tuple[list[int], int]]
"""Prompts as token ids, and the tokens that each generates."""


class Tokens:
    """Token ids; no two prompts of one source begin alike unless they were made to."""

    plain: Sequence[int] = range(FIRST, VOCABULARY)

    def __init__(self) -> None:
        self._next = count(FIRST)

    def take(self, length: int) -> list[int]:
        """``length`` tokens of which the first was never given out as a first."""
        first = next(self._next)
        return [first, *(FIRST + (first * 7919 + 31 * i) % (VOCABULARY - FIRST) for i in range(1, length))]

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError("there is no text here")


def families() -> Load:
    """Six prefixes of 512 tokens, five requests each, interleaved; outputs of 6 to 21 tokens."""
    tokens = Tokens()
    prefixes = [tokens.take(512) for _ in range(6)]
    return [(prefixes[n % 6] + tokens.take(40), 6 + 5 * (n % 4)) for n in range(30)]


def conversations() -> Load:
    """Four conversations of four turns of 192 tokens: each turn begins with what was said before."""
    tokens = Tokens()
    load: Load = []
    for _ in range(4):
        said: list[int] = []
        for _ in range(4):
            said = said + tokens.take(192)
            load.append((said + tokens.take(24), 4 + 3 * (len(load) % 5)))
    return load


def strangers() -> Load:
    """Thirty-two prompts of 70 to 582 tokens that share nothing."""
    tokens = Tokens()
    return [(tokens.take(64 * (n % 9) + 70), 5 + n % 11) for n in range(32)]


def recorded() -> Load:
    """64 requests of Mooncake's conversations, scaled to 1,000 tokens: they share next to nothing."""
    path = files.FOLDER / "mooncake" / "conversation_head.jsonl"
    if not path.is_file():
        raise UsageError(f"there is no {path}: run this from a clone of the repository, installed with `make setup`")
    requests = mooncake(path, Tokens(), Wishes(context=1000, requests=64)).requests
    return [(list(request.prompt), request.output_tokens) for request in requests]


LOADS: dict[str, Callable[[], Load]] = {
    "families": families,
    "conversations": conversations,
    "strangers": strangers,
    "recorded": recorded,
}
CONTROL = "recorded"
"""The negative control: what shares nothing may lose nothing. The simulator need not agree here: what these requests do
share is shorter than a chunk of the index, and it sees whole chunks only."""
