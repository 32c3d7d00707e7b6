"""What is sent to the servers: the same requests, in the same order, at the same times, to each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from feather_sglang.cli.errors import UsageError


class Tokenizer(Protocol):
    """What workloads need of a model's tokenizer."""

    plain: Sequence[int]
    """Token ids that stand for text: no special tokens."""

    def encode(self, text: str) -> list[int]: ...


class Request(NamedTuple):
    """One request."""

    prompt: Sequence[int]
    """Token ids."""
    output_tokens: int
    """What it generates, whatever the model says."""
    family: str = ""
    """Its true family: what a user who labels requests would send as the routing key."""
    arrival: float = 0.0
    """Seconds after the first."""

    @property
    def length(self) -> int:
        """KV tokens at its end."""
        return len(self.prompt) + self.output_tokens


@dataclass(frozen=True)
class Workload:
    """Requests in the order in which they are sent."""

    name: str
    requests: Sequence[Request]
    arrivals: str = "at once"
    """In words."""
    concurrency: int | None = None
    """A closed loop: so many at once, the next is sent when one has ended. None: all are sent as they arrive."""

    @property
    def prompts(self) -> list[Sequence[int]]:
        return [request.prompt for request in self.requests]

    @property
    def prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output_tokens for request in self.requests)

    @property
    def tokens(self) -> int:
        """KV tokens of all requests at their end, if none shared any."""
        return self.prompt_tokens + self.output_tokens

    def __str__(self) -> str:
        each = {request.output_tokens for request in self.requests}
        new = f"{each.pop()} new each" if len(each) == 1 else f"{self.output_tokens:,} new"
        return (
            f"{self.name}: {len(self.requests)} requests {self.arrivals}, {self.prompt_tokens:,} prompt tokens, {new}"
        )

    def poisson(self, rate: float, seed: int = 1) -> Workload:
        """The same requests, ``rate`` a second on average, at the same times for a seed."""
        draw, now, requests = random.Random(seed), 0.0, []
        for request in self.requests:
            requests.append(request._replace(arrival=now))
            now += draw.expovariate(rate)
        return replace(self, requests=requests, arrivals=f"at {rate:g}/s (Poisson)")

    def closed_loop(self, concurrency: int) -> Workload:
        """The same requests, ``concurrency`` of them at any time."""
        return replace(self, concurrency=concurrency, arrivals=f"{concurrency} at a time")


def whole(option: str, value: int) -> None:
    """:raises UsageError: if a size is not positive."""
    if value < 1:
        raise UsageError(f"{option} {value}: give 1 or more")
