"""What is sent to the servers: the same requests, in the same order, to each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from feather_sglang.bench.data import gsm8k
from feather_sglang.cli.errors import UsageError

Encode = Callable[[str], list[int]]
"""A tokenizer: text to token ids."""


@dataclass(frozen=True)
class Workload:
    """Prompts, all sent at once, in this order."""

    name: str
    prompts: list[list[int]]
    """Token ids."""
    output_tokens: int
    """What every request generates, whatever the model says."""

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.prompts)} requests at once, {self.prompt_tokens:,} prompt tokens, "
            f"{self.output_tokens} new each"
        )

    @property
    def tokens(self) -> int:
        """KV tokens of all requests at their end, if none shared any."""
        return self.prompt_tokens + len(self.prompts) * self.output_tokens


def few_shot(
    encode: Encode, *, families: int, per_family: int, shots: int, worked: bool, output_tokens: int
) -> Workload:
    """GSM8K questions, each after the ``shots`` examples of its family; no example and no question comes twice.

    Interleaved: neighbours in the queue are of different families, the arrival order in which a prefix is hardest to
    reuse. ``worked``: the examples show their reasoning, else the final number only.

    :raises UsageError: if GSM8K has not enough examples or questions.
    """
    examples, questions = gsm8k("train_head"), gsm8k("test")
    requests = families * per_family
    if min(families, per_family, shots, output_tokens) < 1:
        raise UsageError("--families, --per-family, --shots and --output-tokens must be 1 or more")
    if families * shots > len(examples):
        raise UsageError(
            f"{families} families of {shots} shots need {families * shots} examples and there are {len(examples)}: "
            "lower --families or --shots"
        )
    if requests > len(questions):
        raise UsageError(
            f"{families} families of {per_family} need {requests} questions and there are {len(questions)}: lower "
            "--families or --per-family"
        )
    prefixes = [
        "".join(
            f"Question: {example.question}\nAnswer: {example.worked if worked else example.short}\n\n"
            for example in examples[family * shots : (family + 1) * shots]
        )
        for family in range(families)
    ]
    return Workload(
        name=(
            f"{families} families x {per_family} GSM8K questions after {shots} examples with "
            f"{'worked' if worked else 'short'} answers"
        ),
        prompts=[
            encode(f"{prefixes[number % families]}Question: {questions[number].question}\nAnswer:")
            for number in range(requests)
        ],
        output_tokens=output_tokens,
    )
