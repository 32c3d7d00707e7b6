"""Recorded traffic as workloads: what is shared is shared, and what is wrong is one line with its place."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from feather_sglang.bench.workloads import Workload, files
from feather_sglang.bench.workloads.recorded import Wishes
from feather_sglang.bench.workloads.trace import trace
from feather_sglang.cli.errors import UsageError
from tests.bench.tokenizer import Bytes

ROOMY = Wishes(context=1 << 20)


def of(path: Path, **wishes: object) -> Workload:
    return trace(path, Bytes(), ROOMY._replace(**wishes))


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def common(a, b) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.fixture
def mooncake(tmp_path):
    """Two of one conversation, then a stranger that shares the system prompt."""
    return written(
        tmp_path / "mooncake.jsonl",
        {"timestamp": 3000, "input_length": 1100, "output_length": 40, "hash_ids": [0, 7, 8]},
        {"timestamp": 6000, "input_length": 1500, "output_length": 10, "hash_ids": [0, 7, 9]},
        {"timestamp": 6000, "input_length": 600, "output_length": 1, "hash_ids": [0, 11]},
    )


def test_mooncake_blocks_have_their_real_size(mooncake):
    first, second, third = of(mooncake).requests
    assert [len(r.prompt) for r in (first, second, third)] == [1100, 1500, 600]
    assert [r.output_tokens for r in (first, second, third)] == [40, 10, 1]
    assert common(first.prompt, second.prompt) in range(1024, 1034)  # random bytes may go on alike
    assert common(first.prompt, third.prompt) in range(512, 522)
    assert first.family == second.family != third.family


def test_mooncake_is_scaled_to_the_context_and_shares_as_before(mooncake):
    workload = of(mooncake, context=151)
    first, second, third = workload.requests
    assert max(request.length for request in workload.requests) <= 151
    assert [len(r.prompt) for r in workload.requests] == [109, 149, 59]
    assert common(first.prompt, second.prompt) in range(102, 112)
    assert common(first.prompt, third.prompt) in range(51, 61)
    assert "lengths x 0.0996" in workload.name
    longest = max(request.length for request in of(mooncake, context=151, output_tokens=30).requests)
    assert 100 < longest <= 151


def test_mooncake_arrives_as_recorded_if_that_is_wanted(mooncake):
    assert [request.arrival for request in of(mooncake).requests] == [0, 0, 0]
    assert [request.arrival for request in of(mooncake, speed=2.0).requests] == [0, 1.5, 1.5]
    assert "2 times as fast" in of(mooncake, speed=2.0).arrivals


@pytest.mark.parametrize("sample", ["conversation", "synthetic"])
def test_mooncake_samples_keep_their_sharing_when_scaled(sample):
    path = files.FOLDER / "mooncake" / f"{sample}_head.jsonl"
    workload = of(path, requests=60, context=1024)
    assert len(workload.requests) == 60
    assert max(request.length for request in workload.requests) in range(850, 1025)
    recorded = [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()[:60]]
    size = round(512 * float(workload.name.rpartition("x ")[2]))
    for i in range(60):
        for j in range(i):
            shared = min(common(recorded[i], recorded[j]) * size, *(len(workload.requests[n].prompt) for n in (i, j)))
            assert common(workload.requests[i].prompt, workload.requests[j].prompt) in range(shared, shared + 8)


@pytest.mark.parametrize("sample", ["mini-swe", "tau-bench"])
def test_sessions_one_after_the_other_or_in_turn(sample):
    path = next((files.FOLDER / sample).glob("*.json*"))
    sessions, turns = of(path), of(path, interleaved=True)
    assert sorted(sessions.requests) == sorted(turns.requests)
    families = [request.family for request in sessions.requests]
    assert [family for family, after in zip(families, [*families[1:], ""], strict=True) if family != after] == [
        *dict.fromkeys(families)
    ]
    assert len({request.family for request in turns.requests[:2]}) == 2
    for family in set(families):
        own = [request.prompt for request in sessions.requests if request.family == family]
        for earlier, later in pairwise(own):
            assert common(earlier, later) > 0.5 * len(earlier)
            assert sample == "mini-swe" or common(earlier, later) == len(earlier)


def test_what_was_asked_of_a_recording():
    path = next((files.FOLDER / "mini-swe").glob("*.jsonl"))
    workload = of(path, requests=3, output_tokens=5)
    assert [request.output_tokens for request in workload.requests] == [5, 5, 5]
    timed = of(path, speed=1.0)
    assert [r.arrival for r in timed.requests] == sorted(r.arrival for r in timed.requests)
    assert timed.requests[0].arrival == 0 < timed.requests[-1].arrival


def test_longer_than_the_context_is_said_with_its_place():
    path = next((files.FOLDER / "mini-swe").glob("*.jsonl"))
    lengths = sorted(request.length for request in of(path).requests)
    with pytest.raises(UsageError, match=r"sessions.jsonl, line \d+ needs [\d,]+ tokens and the context is 10,000"):
        of(path, context=10_000)
    kept = of(path, context=10_000, drop_longer=True)
    assert sorted(request.length for request in kept.requests) == [length for length in lengths if length <= 10_000]
    assert f"{len(lengths) - len(kept.requests)} of {len(lengths)} left out" in kept.name
    with pytest.raises(UsageError, match="needs"):
        of(path, context=10, drop_longer=True)


_GOOD = {"timestamp": 0, "input_length": 600, "output_length": 9, "hash_ids": [0, 1]}


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([], r"trace is empty; expected one JSON object a line"),
        ([_GOOD, '{"timestamp": 0, "inp'], r"trace, line 2: this is not JSON \(.*\); expected one JSON object"),
        ([_GOOD, "", "[]"], r"trace, line 3: this is a JSON list; expected a JSON object"),
        ([_GOOD, _GOOD | {"hash_ids": [0]}], r"line 2: there are 1 hash_ids for 600 tokens; expected one for each 512"),
        ([_GOOD, _GOOD | {"input_length": None}], r"line 2: `input_length` is null; expected a whole number"),
        ([{"session_id": "a", "input": "x", "timestamp": 0}], r"line 1: `output` is missing; expected a text"),
        ([{"session_id": "a", "input": "x", "output": "y"}], r"line 1: `timestamp` is missing"),
        ([{"prompt": "x"}], r"line 1: its keys are prompt; expected a Mooncake trace"),
        (["[}"], r"trace: this is not JSON \(.*\); expected a list of conversations"),
        (["[]"], r"trace holds no conversations"),
        ([[{"traj": [{"content": "x"}]}]], r"trace, conversation 1: there are no messages; expected `traj`"),
        ([[{"traj": [{"role": "user", "content": "x"}]}]], r"trace holds no requests"),
    ],
)
def test_damage_is_one_line(tmp_path, lines, complaint):
    with pytest.raises(UsageError, match=complaint) as error:
        of(written(tmp_path / "trace", *lines))
    assert "\n" not in str(error.value)


def test_no_file_and_an_empty_folder(tmp_path):
    with pytest.raises(UsageError, match=r"none cannot be read \(No such file"):
        of(tmp_path / "none")
    with pytest.raises(UsageError, match=r"holds no \*\.jsonl"):
        of(tmp_path)


def test_what_a_recording_does_not_have(mooncake):
    with pytest.raises(UsageError, match=r"--speed: .* has no arrival times"):
        of(next((files.FOLDER / "tau-bench").glob("*.json")), speed=1.0)
    with pytest.raises(UsageError, match=r"--interleaved: .* is one stream"):
        of(mooncake, interleaved=True)
