"""GSM8K: questions, each after the examples of its family."""

from __future__ import annotations

from typing import NamedTuple

from feather_sglang.bench.workloads import Request, Tokenizer, Workload, files, whole
from feather_sglang.cli.errors import UsageError


class Example(NamedTuple):
    """One question of GSM8K."""

    question: str
    worked: str
    """The answer with its reasoning; the final number stands after ``####``."""

    @property
    def short(self) -> str:
        """The final number alone."""
        return self.worked.rpartition("####")[2].strip()


def gsm8k(split: str) -> list[Example]:
    """``train_head``: the first 64 training examples; ``test``: the 1,319 test questions.

    :raises UsageError: if the file is not there, or a line of it is damaged.
    """
    path = files.FOLDER / "gsm8k" / f"{split}.jsonl"
    if not path.is_file():
        raise UsageError(f"there is no {path}: run this from a clone of the repository, installed with `make setup`")
    with files.told():
        return [Example(line.text("question"), line.text("answer")) for line in files.lines_of(path)]


def few_shot(
    tokenizer: Tokenizer, *, families: int, per_family: int, shots: int, worked: bool, output_tokens: int
) -> Workload:
    """GSM8K questions, each after the ``shots`` examples of its family; no example and no question comes twice.

    Interleaved: neighbours in the queue are of different families, the arrival order in which a prefix is hardest to
    reuse. ``worked``: the examples show their reasoning, else the final number only.

    :raises UsageError: if GSM8K has not enough examples or questions.
    """
    for option, size in (
        ("--families", families),
        ("--per-family", per_family),
        ("--shots", shots),
        ("--output-tokens", output_tokens),
    ):
        whole(option, size)
    examples, questions = gsm8k("train_head"), gsm8k("test")
    requests = families * per_family
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
        requests=[
            Request(
                tokenizer.encode(f"{prefixes[n % families]}Question: {questions[n].question}\nAnswer:"),
                output_tokens,
                family=str(n % families),
            )
            for n in range(requests)
        ],
    )
