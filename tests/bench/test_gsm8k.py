"""The data under ``bench/data``, and the prompts made of it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from feather_sglang.bench.workloads import files, gsm8k
from feather_sglang.bench.workloads.gsm8k import few_shot
from feather_sglang.cli.errors import UsageError
from tests.bench.tokenizer import Bytes

SHA256 = {
    "train_head.jsonl": "33677560147f2b684ead8a7199d0c6041b21e59ae8c61b97bc294962a03cbab0",
    "test.jsonl": "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
    "LICENSE": "86bbb73e855821d7c401912fd4bf82e34313e6e3b6fd6f909f2b6cc9e209a53b",
}


@pytest.mark.parametrize("name", SHA256)
def test_the_files_are_those_of_the_source(name: str) -> None:
    assert hashlib.sha256((files.FOLDER / "gsm8k" / name).read_bytes()).hexdigest() == SHA256[name]


def test_gsm8k_is_whole() -> None:
    assert len(gsm8k.gsm8k("train_head")) == 64
    assert len(gsm8k.gsm8k("test")) == 1319
    for example in gsm8k.gsm8k("train_head") + gsm8k.gsm8k("test"):
        assert re.fullmatch(r"-?[\d,.]+", example.short), example
        assert example.worked.endswith(f"#### {example.short}")


def test_no_data() -> None:
    with pytest.raises(UsageError, match=r"there is no .*none.jsonl: run this from a clone"):
        gsm8k.gsm8k("none")


def test_a_damaged_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    (tmp_path / "gsm8k").mkdir()
    for damage in ('{"question": "why?"', '{"question": "why?"}', "[]", '"why?"'):
        (tmp_path / "gsm8k" / "test.jsonl").write_text('{"question": "q", "answer": "a #### 1"}\n' + damage + "\n")
        with pytest.raises(UsageError, match=r"test\.jsonl, line 2: "):
            gsm8k.gsm8k("test")


@pytest.mark.parametrize("worked", [False, True])
def test_families_share_their_examples_and_nothing_comes_twice(worked: bool) -> None:
    workload = few_shot(Bytes(), families=8, per_family=8, shots=8, worked=worked, output_tokens=4)
    texts = [bytes(prompt).decode() for prompt in workload.prompts]
    prefixes = [text.rpartition("Question: ")[0] for text in texts]
    assert len(texts) == 64
    assert len(set(prefixes)) == 8
    assert all(prefixes[number] == prefixes[number % 8] for number in range(64))
    assert len({text.rpartition("Question: ")[2] for text in texts}) == 64
    shots = [shot for prefix in set(prefixes) for shot in prefix.split("Question: ")[1:]]
    assert len(shots) == len(set(shots)) == 64
    assert ("####" in texts[0]) == worked
    assert all(text.endswith("\nAnswer:") for text in texts)
    assert workload.tokens == sum(map(len, workload.prompts)) + 64 * 4


@pytest.mark.parametrize(
    ("sizes", "complaint"),
    [
        ({"families": 9}, "need 72 examples and there are 64"),
        ({"per_family": 200}, "need 1600 questions and there are 1319"),
        ({"shots": 0}, "--shots 0: give 1 or more"),
    ],
)
def test_sizes_that_cannot_be(sizes: dict[str, int], complaint: str) -> None:
    sizes = {"families": 8, "per_family": 8, "shots": 8, "output_tokens": 8} | sizes
    with pytest.raises(UsageError, match=complaint):
        few_shot(Bytes(), worked=False, **sizes)
