"""The data sets under ``bench/data`` of a source checkout. An installed wheel does not carry them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import feather_sglang
from feather_sglang.cli.errors import UsageError

FOLDER = Path(feather_sglang.__file__).resolve().parents[2] / "bench" / "data"


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
    path = FOLDER / "gsm8k" / f"{split}.jsonl"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(
            f"the workload {path} cannot be read ({error.strerror}): run this from a clone of the repository, "
            "installed with `make setup`"
        ) from None
    examples = []
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            examples.append(Example(fields["question"], fields["answer"]))
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"{path}, line {number} is damaged ({type(error).__name__}): expected a JSON object with "
                "`question` and `answer`; `git checkout` brings it back"
            ) from None
    return examples
