"""What the core is told of an SGLang request: on arrival, while it runs, and when it is gone.

Read from ``Req`` (``managers/schedule_batch.py``), 0.5.20-0.5.23.
"""

from __future__ import annotations

import time
from enum import IntEnum
from functools import partial
from typing import Any

from feather_sglang.core.interface import Phase, Request, Row
from feather_sglang.sglang.options import OUTPUT_TOKENS


class Place(IntEnum):
    WAITING = 0
    RUNNING = 1
    EXPRESS = 2
    """Waiting, and not the core's business: it is to be answered at once."""
    GONE = 3


WAITING, RUNNING, EXPRESS, GONE = Place
"""A member costs ten times as much to look up in its enumeration, and a pass compares one a request."""
PREFILLING, DECODING = Phase.PREFILLING, Phase.DECODING
_row = partial(tuple.__new__, Row)
"""A third of the time that the constructor takes."""


class Tracked:
    """One request of the engine, under the id that the core knows it by."""

    __slots__ = ("arrival", "due", "id", "outputs_at_admission", "place", "published", "req", "row", "since", "told")

    def __init__(self, id: int, req: Any, arrival: tuple[int, int]) -> None:
        self.id = id
        self.req = req
        self.arrival = arrival
        self.since: float | None = time.monotonic()
        """When it came, for operators and nobody else; None: it was admitted once."""
        self.place = WAITING
        self.published = -1
        """As told last; -1: never."""
        self.outputs_at_admission = 0
        self.row = 0
        """Its place among the ids of running rows."""
        self.due = 0
        """The pass in which to look at its output again."""
        self.told = 0
        """Output tokens that the core knows."""


def is_express(req: Any) -> bool:
    """Whether it goes first, without the core: a stub that only waits to be answered with an error, or the next turn of
    a streaming session, whose KV is pinned while it waits, so that no budget the core sees would ever have room for it.
    """
    return req.to_finish is not None or (req.session is not None and req.session.streaming)


def namespace_of(req: Any) -> tuple[str | None, ...]:
    """What separates requests with equal tokens: (LoRA id, extra key, cache salt), absent differing from empty.

    SGLang folds the LoRA id into the extra key, which alone would confuse ('a', 'bc') with ('ab', 'c').

    :raises AttributeError: for an object without one of them; it must never be taken for a shared one.
    """
    return (req.lora_id, req.extra_key, req.cache_salt)


def shareable_of(req: Any) -> int | None:
    """Tokens, from the start, that may ever be shared; None: all.

    Embeddings given as vectors stand behind made-up token ids; log probabilities of the prompt are computed, not
    looked up, so SGLang caps the match at their start (``Req._compute_max_prefix_len``).
    """
    if req.positional_embed_overrides is not None or req.input_embeds is not None:
        return 0
    if req.return_logprob and req.logprob_start_len >= 0:
        return int(req.logprob_start_len)
    return None


def request_of(tracked: Tracked, page: int, clip: int) -> Request:
    """The request as the core wants it on arrival, and again after a retraction.

    :param clip: output tokens that SGLang reserves for one request at most (its ``CLIP_MAX_NEW_TOKENS``).

    ``reserve`` is what ``PrefillAdder`` deducts beyond the tokens it computes: the output still to come, one page, and
    the rounding of the prompt up to a page. A prompt of whole pages counts one more: at least one of its tokens is
    computed again for its logits, and with it the page. That also covers the adder's strict comparison.

    :raises AttributeError: where the object lacks what a request of a known version has.
    """
    req = tracked.req
    prompt, output = req.origin_input_ids, req.output_ids
    length = len(prompt) + len(output)
    max_new = req.sampling_params.max_new_tokens or 0
    shareable = shareable_of(req)
    return Request(
        id=tracked.id,
        tokens=(prompt, output) if output else (prompt,),
        length=length,
        reserve=min(max(max_new - len(output), 0), clip) + page + (page - length % page),
        namespace=namespace_of(req),
        arrival=tracked.arrival,
        shareable=shareable,
        leads=not req.skip_radix_cache_insert and shareable != 0,
        max_new=max_new,
        predicted_new=said_output_of(req),
    )


def said_output_of(req: Any) -> int | None:
    """Output tokens that the client says a request will generate; None: it does not, or says nonsense."""
    said = req.sampling_params.custom_params
    tokens = said.get(OUTPUT_TOKENS) if isinstance(said, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and 0 < tokens < 1 << 40 else None


def unshared_request_of(tracked: Tracked, page: int) -> Request:
    """A request of which nothing can be read, so that it is served in its turn and shares with nobody."""
    return Request(
        id=tracked.id, length=1, tokens=((0,),), reserve=page, arrival=tracked.arrival, shareable=0, leads=False
    )


def row_of(tracked: Tracked, computing: bool, grown: Any = None) -> Row:
    """What is new of a running row.

    :param computing: whether its prompt is still being computed.
    :param grown: output tokens not told yet.
    """
    tracked.published = published = tracked.req.kv.cache_protected_len  # what the tree owns, and another would match
    return _row((tracked.id, PREFILLING if computing else DECODING, published, 0, not computing, grown, False, 0))


def is_computing(tracked: Tracked, chunked: Any) -> bool:
    """Whether the prompt of a running row is not computed yet, or its result was not seen.

    Not told by ``output_ids == []`` (a retracted request keeps its output), nor by the prefix length (a mixed chunk
    rewrites it).
    """
    return tracked.req is chunked or len(tracked.req.output_ids) == tracked.outputs_at_admission


def prefix_of(req: Any) -> int:
    """Tokens that the match of a request found when it was admitted."""
    try:
        tokens: int = req.prefix_len
    except AttributeError:  # before 0.5.22
        tokens = len(req.prefix_indices)
    return tokens


def produced_by(tracked: Tracked) -> int | None:
    """Output tokens of a request that left the batch, if its KV went to the cache; None: only what it published did."""
    req = tracked.req
    if not req.finished():  # handed on (disaggregated prefill), or retracted into a full queue
        return None
    outputs = len(req.output_ids)
    if outputs == tracked.outputs_at_admission and _aborted(req):
        return None  # aborted between two chunks: released without a checkpoint
    return outputs


def _aborted(req: Any) -> bool:
    return bool(req.finished_reason.to_json().get("type") == "abort")
