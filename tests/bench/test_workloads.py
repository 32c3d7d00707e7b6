"""Generated prompts, arrivals, sweeps and arms."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from feather_sglang.bench import arms, serve_options
from feather_sglang.bench.client import Reply
from feather_sglang.bench.kv import running_kv
from feather_sglang.bench.workloads import Request, Workload, files
from feather_sglang.bench.workloads.shared_prefix import shared_prefix
from feather_sglang.cli.errors import UsageError
from tests.bench.tokenizer import Bytes


def asked(*argv: str, context: int = 1 << 20) -> list[Workload]:
    options, rest = serve_options.parser().parse_known_args(argv)
    assert rest == []
    serve_options.check(options)
    return serve_options.workloads(options, Bytes(), context)


def test_a_family_shares_its_prefix_and_nothing_else() -> None:
    workload = shared_prefix(Bytes(), families=4, per_family=3, prefix=40, suffix=20, output_tokens=5)
    prefixes = {request.family: tuple(request.prompt[:40]) for request in workload.requests}
    assert len(set(prefixes.values())) == 4
    assert all(tuple(request.prompt[:40]) == prefixes[request.family] for request in workload.requests)
    assert len({tuple(request.prompt[40:]) for request in workload.requests}) == 12
    assert {request.length for request in workload.requests} == {65}
    families = [request.family for request in workload.requests]
    assert families != sorted(families)
    assert workload == shared_prefix(Bytes(), families=4, per_family=3, prefix=40, suffix=20, output_tokens=5)


def test_poisson_arrivals_are_the_same_every_time() -> None:
    workload = Workload("many", [Request((1, 2), 1)] * 2000).poisson(4.0)
    times = [request.arrival for request in workload.requests]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == 0
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.1)
    assert statistics.pstdev(gaps) == pytest.approx(0.25, rel=0.15)
    assert workload.requests == Workload("many", [Request((1, 2), 1)] * 2000).poisson(4.0).requests


def test_every_combination_is_a_workload_with_a_name_of_its_own() -> None:
    gsp = ("--workload", "generated-shared-prefix")
    found = asked(*gsp, "--families", "2,4", "--prefix", "16,32", "--output-tokens", "3,5", "--concurrency", "1,2")
    assert len(found) == len({each.name for each in found}) == 16
    assert {each.concurrency for each in found} == {1, 2}
    assert [each.name for each in asked(*gsp, "--per-family", "2")] == ["8 families x 2, 512 shared + 64 own tokens"]
    assert len(asked("--families", "1,2", "--prefix", "16,32")) == 2  # GSM8K has prefixes of its own


def test_longer_than_the_context_is_said_before_anything_is_started() -> None:
    gsp = ("--workload", "generated-shared-prefix", "--suffix", "16", "--output-tokens", "4")
    assert len(asked(*gsp, "--prefix", "80", context=100)) == 1
    with pytest.raises(UsageError, match=r"81 shared .* a request has 101 tokens and the context is 100: lower --pref"):
        asked(*gsp, "--prefix", "81", context=100)
    with pytest.raises(UsageError, match=r"a request has [\d,]+ tokens and the context is 100: lower --shots"):
        asked(context=100)
    with pytest.raises(UsageError, match="--context 101: the context is 100 tokens; give that or less"):
        asked("--data", str(files.FOLDER / "mooncake" / "conversation_head.jsonl"), "--context", "101", context=100)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("fcfs,feather", ["fcfs", "feather"]),
        ("ablation", ["fcfs-alone", "order", "+barrier", "+rows", "+sharing", "+gate"]),
        ("feather@torch_native,fcfs", ["feather@torch_native", "fcfs"]),
    ],
)
def test_arms(text: str, names: list[str]) -> None:
    assert list(arms.chosen(text)) == names


def test_groups_may_overlap() -> None:
    assert list(arms.chosen("policies,feather-all,ablation,control,all")) == list(arms.ARMS)


def test_each_ablation_arm_adds_one_thing() -> None:
    """The switches that differ between neighbours."""
    flags = [_switches(arms.ARMS[name].args) for name in arms.GROUPS["ablation"]]
    changes = [{key for key in {*one, *two} if one.get(key) != two.get(key)} for one, two in pairwise(flags)]
    assert changes == [
        {"schedule-policy", "feather-barrier", "feather-row-order"},  # the last two mean nothing to fcfs
        {"feather-barrier"},
        {"feather-row-order"},
        {"feather-sharing"},
        {"feather-gate"},
    ]


def _switches(args: tuple[str, ...]) -> dict[str, str]:
    return {name.removeprefix("--"): value for name, value in zip(args[::2], args[1::2], strict=True)}


def test_orders_and_gates_are_all_there_and_a_running_server_is_named_alike() -> None:
    assert set(arms.GROUPS["feather-all"]) >= {"feather", "feather-held", "feather-static", "feather-held-model"}
    assert len(arms.GROUPS["feather-all"]) == 10
    assert arms.name_of("feather", "missing", "never") == "feather"
    assert arms.name_of("feather", "held", "ucb") == "feather-held-ucb"
    assert arms.name_of("lpm") == "lpm"


@pytest.mark.parametrize(
    ("arm", "baseline"),
    [
        ("lpm", "fcfs"),
        ("feather@torch_native", "fcfs@torch_native"),
        ("+barrier", "fcfs-alone"),
        ("feather-no-cache", "fcfs-no-cache"),
        ("fcfs", "fcfs"),
    ],
)
def test_an_arm_is_compared_with_its_like(arm: str, baseline: str) -> None:
    assert arms.baseline_of(arm) == baseline


def _reply(first: float, *gaps: float) -> Reply:
    return Reply(first, first + sum(gaps), len(gaps) + 1, prompt_tokens=0, cached_tokens=0, gaps=gaps)


def test_the_kv_that_is_distinct() -> None:
    prompts = [[1, 2, 3, 4], [9, 9], [1, 2, 7], [1, 2, 3, 4, 5]]
    # One step of the first and the third, which share two tokens; the second ended with its prefill; the last is alone.
    kv = running_kv(prompts, [_reply(1, 2), _reply(0), _reply(1, 2.001), _reply(4, 1)])
    steps = [(4 + 1) + (3 + 1), (4 + 1) + (3 + 1), 5 + 1]
    assert kv.total == sum(steps) / 3
    assert kv.distinct == (7 + 7 + 6) / 3


def test_kv_grows_while_a_request_decodes() -> None:
    assert running_kv([[1, 2]], [_reply(0, 1, 1, 1)]) == (4, 4)  # 3, 4 and 5 tokens
    assert running_kv([[1, 2]], [_reply(1)]) == (0, 0)


def test_what_running_rows_share_does_not_depend_on_who_lies_between_them() -> None:
    prompts = [[1, 2, 3, 4], [1, 3], [1, 3, 9]]
    kv = running_kv(prompts, [_reply(1, 2), _reply(0), _reply(1, 2)])  # the second ended with its prefill
    assert kv == ((4 + 1) + (3 + 1), (4 + 1) + (3 + 1) - 1)
