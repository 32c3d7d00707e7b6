"""Generated prompts that share prefixes: groups x prefix x output, as ``generated-shared-prefix`` of
``sglang.bench_serving``.

Made here of token ids: SGLang's generator decodes them to text, so that lengths change, and keeps its prompts in a
file named after the tokenizer's class, so that those of another model come back.
"""

from __future__ import annotations

import random

from feather_sglang.bench.workloads import Request, Tokenizer, Workload, whole


def shared_prefix(
    tokenizer: Tokenizer,
    *,
    families: int,
    per_family: int,
    prefix: int,
    suffix: int,
    output_tokens: int,
    seed: int = 1,
) -> Workload:
    """Random tokens: each request is the ``prefix`` of its family and a ``suffix`` of its own; in random order.

    :raises UsageError: if a size is not positive.
    """
    for option, size in (
        ("--families", families),
        ("--per-family", per_family),
        ("--prefix", prefix),
        ("--suffix", suffix),
        ("--output-tokens", output_tokens),
    ):
        whole(option, size)
    draw = random.Random(seed)
    prefixes = [draw.choices(tokenizer.plain, k=prefix) for _ in range(families)]
    order = [family for family in range(families) for _ in range(per_family)]
    draw.shuffle(order)
    return Workload(
        name=f"{families} families x {per_family}, {prefix} shared + {suffix} own tokens",
        requests=[
            Request(prefixes[family] + draw.choices(tokenizer.plain, k=suffix), output_tokens, family=str(family))
            for family in order
        ],
    )
