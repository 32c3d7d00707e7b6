"""What of SGLang the policy does not go with, or not in full: every such decision, in one place.

Whatever is in none of these tables is served by the policy as a whole. ``docs/coexistence.md`` goes through SGLang
feature by feature, each with the test that shows it, or with the reason why it was not run. What single requests may
share is decided in ``rows.py`` (``namespace_of``, ``shareable_of``, ``is_express``, and ``leads`` in ``request_of``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Case(NamedTuple):
    """:param what: an option of SGLang, or a kind of model or server.
    :param holds: whether this is one: asked of SGLang's arguments at the start, or of its ``Scheduler``.
    :param why: the rest of the sentence that operators read.
    """

    what: str
    holds: Callable[[Any], Any]
    why: str


REFUSED = (
    Case(
        "--enable-priority-scheduling",
        lambda args: args.enable_priority_scheduling,
        "SGLang orders by priority only under fcfs and lof",
    ),
    Case("--enable-pdmux", lambda args: args.enable_pdmux, "it prefills and decodes side by side"),
)
"""Of arguments: one line, and the server does not start."""

INERT = (
    Case(
        "a decode server of a disaggregated pair",
        lambda scheduler: scheduler.disaggregation_mode.value == "decode",
        "takes requests that are prefilled already",
    ),
    Case(
        "a diffusion language model",
        lambda scheduler: scheduler.dllm_config is not None,
        "has queues of its own",
    ),
    Case(
        "the radix cache",
        lambda scheduler: getattr(scheduler.tree_cache, "disable", True),
        "is off, so nothing is shared",
    ),
)
"""Of schedulers: SGLang serves as if ``fcfs`` had been chosen, and says so. The first that holds counts."""

ORDERED_ONLY = (
    Case(
        "embeddings and rewards",
        lambda scheduler: not scheduler.is_generation,
        "no decode step would follow a pass that a gate cuts short",
    ),
    Case(
        "a prefill server of a disaggregated pair",
        lambda scheduler: scheduler.disaggregation_mode.value != "null",
        "it does not decode, so a gate has nothing to learn from",
    ),
)
"""Of schedulers: the order is the policy's, and no gate is asked."""

ROWS_LEFT_ALONE = (
    Case(
        "speculative decoding",
        lambda scheduler: not scheduler.spec_algorithm.is_none(),
        "keeps drafts by row",
    ),
    Case(
        "an encoder-decoder model",
        lambda scheduler: scheduler.model_config.is_encoder_decoder,
        "keeps encoder states by row",
    ),
    Case("sparse attention", lambda scheduler: scheduler.enable_hisparse, "keeps a device buffer by row"),
)
"""Of schedulers: the rows of decode batches are not sorted by family. Each of these keeps state by row in a place that
was not seen to follow."""

ROWS_ALL_DECODE = (
    Case("--pp-size", lambda args: args.pp_size > 1, "pipeline stages have several batches in flight"),
    Case("--speculative-algorithm", lambda args: args.speculative_algorithm is not None, "drafts are kept by row"),
    Case("attention data parallelism", lambda args: args.enable_dp_attention, "ranks must step together"),
    Case(
        "--disaggregation-mode",
        lambda args: args.disaggregation_mode != "null",
        "rows are handed over to another server",
    ),
    Case(
        "--enable-hierarchical-cache",
        lambda args: args.enable_hierarchical_cache,
        "it moves KV to the host on its own",
    ),
)
"""Of arguments: ``--feather-park`` and ``--feather-decode``, by which rows sit out, are refused with these."""


def first(cases: tuple[Case, ...], of: Any) -> Case | None:
    """The first case that holds."""
    return next((case for case in cases if case.holds(of)), None)


def reason(cases: tuple[Case, ...], of: Any) -> str | None:
    """The first case that holds, in words."""
    case = first(cases, of)
    return None if case is None else f"{case.what} {case.why}"
