"""What recorded traffic has in common, whatever it was recorded from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

from feather_sglang.bench.workloads import Request, Workload
from feather_sglang.cli.errors import UsageError


class Recorded(NamedTuple):
    """A request, and where it was found."""

    where: str
    request: Request
    """Its arrival counts from the same moment for all; only meaningful if the source has times."""


class Wishes(NamedTuple):
    """What is asked of a recording."""

    context: int
    """Tokens, prompt and output, that the model takes at most."""
    requests: int | None = None
    """Only so many, the first ones."""
    output_tokens: int | None = None
    """Of every request, in place of what was recorded."""
    interleaved: bool = False
    """Sessions in turn, one request of each, in place of one after the other."""
    drop_longer: bool = False
    """Leave out what is longer than the context."""
    speed: float | None = None
    """Arrivals as recorded, so many times as fast; None: all at once."""


def ordered(sessions: Iterable[Sequence[Recorded]], *, interleaved: bool) -> list[Recorded]:
    """One session after the other; interleaved: the first request of each, then the second of each, and so on."""
    if not interleaved:
        return list(chain.from_iterable(sessions))
    return [each for turn in zip_longest(*sessions) for each in turn if each is not None]


def workload(name: str, recorded: Sequence[Recorded], wishes: Wishes, *, timed: bool) -> Workload:
    """The recorded requests that were asked for.

    :param recorded: in the order to send them in.
    :param timed: whether their arrivals are those of the record.
    :raises UsageError: if one is longer than the context, or there are no times to keep.
    """
    recorded = recorded[: wishes.requests]
    if wishes.output_tokens is not None:
        new = wishes.output_tokens
        recorded = [each._replace(request=each.request._replace(output_tokens=new)) for each in recorded]
    fitting = [each for each in recorded if each.request.length <= wishes.context]
    dropped = len(recorded) - len(fitting)
    if dropped and (not wishes.drop_longer or not fitting):
        first = next(each for each in recorded if each.request.length > wishes.context)
        raise UsageError(
            f"{first.where} needs {first.request.length:,} tokens and the context is {wishes.context:,}: "
            "--drop-longer leaves such requests out, --requests takes the first ones only, and a model with a longer "
            "context (--model-path) takes more"
        )
    requests = [each.request for each in fitting]
    left_out = f" ({dropped} of {len(recorded)} left out: longer than {wishes.context:,} tokens)" if dropped else ""
    if wishes.speed is None:
        return Workload(name + left_out, [request._replace(arrival=0.0) for request in requests])
    if not timed:
        raise UsageError(f"--speed: {name} has no arrival times; leave it out, or give --rate")
    began = min(request.arrival for request in requests)
    paced = [request._replace(arrival=(request.arrival - began) / wishes.speed) for request in requests]
    times = "as recorded" if wishes.speed == 1 else f"as recorded, {wishes.speed:g} times as fast"
    return Workload(name + left_out, sorted(paced, key=lambda request: request.arrival), arrivals=times)
