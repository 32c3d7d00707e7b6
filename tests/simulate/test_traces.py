"""Readers of recorded traffic: what they take from each format, and what they say of a bad file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from feather_sglang.simulate.profiles import PROFILES
from feather_sglang.simulate.traces import TraceError, read

DATA = Path(__file__).parents[2] / "bench" / "data"


def write(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def mooncake(timestamp: int = 0, length: int = 1100, output: int = 5, blocks: tuple[int, ...] = (0, 1, 2)) -> dict:
    return {"timestamp": timestamp, "input_length": length, "output_length": output, "hash_ids": list(blocks)}


@pytest.mark.parametrize(("file", "requests"), [("conversation_head", 2000), ("synthetic_head", 400)])
def test_mooncake_samples(file: str, requests: int) -> None:
    trace = read(DATA / "mooncake" / f"{file}.jsonl")
    assert (trace.format, trace.level_tokens, len(trace.jobs)) == ("Mooncake", 512, requests)
    assert [job.id for job in trace.jobs] == list(range(requests))
    assert all(len(job.levels) == job.length // 512 for job in trace.jobs)
    assert len({job.levels[0] for job in trace.jobs if job.levels}) < requests


def test_mooncake_times_and_limit(tmp_path: Path) -> None:
    trace = read(write(tmp_path, mooncake(3000), mooncake(1000, output=0), mooncake(9000)), limit=2)
    assert [job.arrival for job in trace.jobs] == [0.0, 2.0], "in order of arrival, from 0"
    assert trace.lines == [2, 1]
    assert [job.output for job in trace.jobs] == [1, 5]
    assert [job.arrival for job in trace.at_speed(4)] == [0.0, 0.5]


def test_serving(tmp_path: Path) -> None:
    run = {"total_input_tokens": 30, "request_rate": 2.0, "input_lens": [10, 0, 20], "output_lens": [3, 0, 4]}
    trace = read(write(tmp_path, run | {"input_lens": [1], "output_lens": [1]}, run))
    assert [(job.length, job.output, len(job.levels)) for job in trace.jobs] == [(10, 3, 0), (20, 4, 0)]
    assert trace.jobs[1].arrival > 0
    assert "nothing is shared" in trace.notes[0]
    at_once = read(write(tmp_path, run | {"request_rate": float("inf")}))
    assert [job.arrival for job in at_once.jobs] == [0.0, 0.0]


def test_openai_token_ids_share_whole_levels(tmp_path: Path) -> None:
    prefix = list(range(130))
    lines = [{"prompt": [*prefix, tail], "max_tokens": 7, "timestamp": 1.0 + tail} for tail in (0, 1)]
    one, two = read(write(tmp_path, *lines)).jobs
    assert (one.length, one.output, len(one.levels)) == (131, 7, 2)
    assert one.levels == two.levels
    assert (one.arrival, two.arrival) == (0.0, 1.0)


def test_openai_messages(tmp_path: Path) -> None:
    system = {"role": "system", "content": "s" * 2000}

    def line(model: str, question: str, usage: bool) -> dict:
        body = {"model": model, "messages": [system, {"role": "user", "content": question}], "max_tokens": 9}
        answer = {"response": {"body": {"usage": {"prompt_tokens": 512, "completion_tokens": 3}}}} if usage else {}
        return {"custom_id": question, "body": body, "created": 1_700_000_000_000} | answer

    trace = read(write(tmp_path, line("a", "one", True), line("a", "two", False), line("b", "two", False)))
    first, second, other = trace.jobs
    assert (first.length, first.output, second.output) == (512, 3, 9)
    assert len(first.levels) >= 6
    assert first.levels[:6] == second.levels[:6]
    assert second.levels[:1] != other.levels[:1], "another model shares nothing"
    assert "characters a token (by usage)" in trace.notes[0]
    assert "characters a token (assumed)" in read(write(tmp_path, line("a", "one", False))).notes[0]


@pytest.mark.parametrize(
    "lines",
    [
        [{"input": "x" * 4000, "output": "y" * 40, "timestamp": 1_760_428_258_635_837}],
        [{"prompt": "x" * 4000, "max_tokens": 10, "created": "2025-10-14T07:50:58Z"}],
    ],
)
def test_openai_text(tmp_path: Path, lines: list[dict]) -> None:
    (job,) = read(write(tmp_path, *lines)).jobs
    assert (job.length, job.output, len(job.levels)) == (1000, 10, 15)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], "is empty; expected one request a line"),
        ([mooncake(), "{"], "line 2: this is not JSON"),
        ([mooncake(), "[1]"], "line 2: this is a JSON list; expected a JSON object"),
        ([mooncake(), mooncake(length=-1)], "line 2: `input_length` is -1; expected a whole number of at least 1"),
        ([mooncake(), {"timestamp": 1}], "line 2: `input_length` is missing"),
        ([mooncake(blocks=(0, 1))], "line 1: there are 2 hash_ids for 1,100 tokens; expected one for each 512 tokens"),
        ([mooncake(blocks=(0, 1, 2, 3))], "line 1: there are 4 hash_ids for 1,100 tokens"),
        ([mooncake() | {"hash_ids": ["a"]}], "line 1: `hash_ids` is"),
        ([mooncake() | {"timestamp": "now"}], 'line 1: `timestamp` is "now"; expected a number of at least 0'),
        ([{"colour": "red"}], "line 1: no known format has the keys colour; expected a Mooncake trace"),
        ([{"total_input_tokens": 3}], "line 1: `input_lens` is missing; expected a run of `bench_serving"),
        ([{"input_lens": [1], "output_lens": []}], "line 1: there are 1 input_lens and 0 output_lens"),
        ([{"input_lens": [0], "output_lens": [0]}], "holds no request"),
        ([{"messages": []}], "line 1: there is no prompt"),
        ([{"prompt": "hello"}], "line 1: it does not say how much was generated"),
        ([{"prompt": "a", "max_tokens": 1, "created": "noon"}], "line 1: `created` is 'noon'"),
    ],
)
def test_bad_files(tmp_path: Path, lines: list[object], complaint: str) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(TraceError) as raised:
        read(path)
    assert str(raised.value).startswith(str(path))
    assert complaint in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path / "none")


def test_a_request_longer_than_the_context(tmp_path: Path) -> None:
    trace = read(write(tmp_path, mooncake(), mooncake(length=9000, blocks=tuple(range(18)))))
    trace.check(131_072, 800_000, "profile h200")
    with pytest.raises(TraceError, match=r"line 2: the request needs 9,005 tokens .* at most 8,192, the context of"):
        trace.check(8192, 65_536, "profile cpu")
    with pytest.raises(TraceError, match="at most 4,000, the KV pool of"):
        trace.check(8192, 4000, "profile cpu")


def test_profiles_say_where_each_constant_is_from() -> None:
    assert next(iter(PROFILES)) == "h200"
    default = PROFILES["h200"]
    assert (default.rows, default.kv_tokens) == (256, 800_000)
    for profile in PROFILES.values():
        assert all(constant.origin for constant in profile.constants)
        assert {"rows", "kv_tokens", "context"} <= {constant.name for constant in profile.constants}
