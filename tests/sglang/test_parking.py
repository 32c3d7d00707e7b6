"""Rows sit out, are parked, come back, are retracted and aborted meanwhile: no answer changes, and nothing leaks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.sampling.sampling_params import SamplingParams

from feather_sglang.bench.engine import draw_weights
from feather_sglang.cli.model import embedded_model
from feather_sglang.sglang.parking import batches, hooks
from feather_sglang.sglang.parking import rows as rows_module
from feather_sglang.sglang.parking.rows import Rows
from feather_sglang.sglang.parking.slab import HostSlab
from feather_sglang.sglang.parking.tails import Tails
from tests.harness import pool
from tests.harness.mirror import check_mirror
from tests.harness.parking import check_nothing_is_left, park_at_random, park_under_pressure
from tests.harness.prompts import Tokens, interleaved

pytestmark = pytest.mark.slow

SEEDS = (0, 1, 2)
REQUESTS = 24

SETTINGS = {
    "overlap, page 1": {"overlap": True, "page_size": 1},
    "overlap, page 16": {"overlap": True, "page_size": 16},
    "no overlap, page 1": {"overlap": False, "page_size": 1},
    "no overlap, page 16": {"overlap": False, "page_size": 16},
    "mixed chunks": {"overlap": True, "page_size": 1, "enable_mixed_chunk": True, "chunked_prefill_size": 96},
}


@pytest.fixture(scope="module", params=SETTINGS)
def name(request):
    return request.param


@pytest.fixture
def start(start):
    def with_weights(**settings):
        harness = start(**settings)
        draw_weights(harness.scheduler)
        return harness

    return with_weights


@pytest.fixture
def harness(start, name):
    return start(**SETTINGS[name])


EXPECTED: dict[str, dict[str, Any]] = {}
"""Answers without parking, by setting."""


@pytest.fixture
def expected(harness, name):
    return answers_of(harness, name)


def answers_of(harness, name):
    if name not in EXPECTED:
        harness.reconfigure()
        park_under_pressure(
            harness
        )  # there is no pressure: it only counts penalties by position, as the other arm does
        EXPECTED[name] = serve(harness)
        assert harness.scheduler.feather_rows.partial == 0
        assert (name == "mixed chunks") is any(batch.mode == "MIXED" for batch in harness.log.batches)
        assert len({str(answer) for answer in EXPECTED[name].values()}) > 0.8 * REQUESTS
    return EXPECTED[name]


def fields_of(number: int) -> dict[str, Any]:
    """What a request asks for, another thing for each: what SGLang keeps by row, all of it greedy."""
    sampling: dict[str, Any] = {"max_new_tokens": 16 + number % 9, "ignore_eos": True, "temperature": 0}
    fields: dict[str, Any] = {}
    match number % 6:
        case 0:
            sampling |= {"frequency_penalty": 1.5, "presence_penalty": 0.5}
        case 1:
            sampling |= {"repetition_penalty": 1.7}
        case 2:
            sampling |= {"logit_bias": {str(1000 + number): 2.0}}
        case 3:
            fields |= {"return_logprob": True, "top_logprobs_num": 3}
        case 4:
            sampling |= {"presence_penalty": 2.0}
            fields |= {"return_logprob": True, "top_logprobs_num": 1}
    params = SamplingParams(**sampling)
    params.normalize(None)
    return fields | {"sampling_params": params}


def serve(harness, disturb=lambda step: None) -> dict[str, Any]:
    """Two families and loners, arriving while others run; what each was answered.

    :param disturb: called before each pass, with its number.
    """
    tokens = Tokens()
    prompts = [*interleaved(tokens.families(2, 8, 48, 16)), *(tokens.take(20 + 7 * i) for i in range(8))]
    requests = {}
    passes = 0

    def step():
        nonlocal passes
        disturb(passes)
        batch = harness.step()
        parked = {req.rid for req in harness.scheduler.feather_rows.tails._parked}
        assert batch is None or parked.isdisjoint(batch.rids), "a step of rows whose KV is away"
        if passes % 8 == 0:
            check_mirror(harness)
        passes += 1

    for number, prompt in enumerate(prompts):
        rid = harness.send(prompt, rid=f"r{number:02}", **fields_of(number))
        requests[rid] = harness.queue[-1]
        if harness.scheduler.is_mixed_chunk:  # SGLang mixes nothing while one wants log probabilities
            requests[rid].return_logprob = False
        if number % 3 == 2:
            step()
        if number >= 12:  # into a batch of which rows sit out
            step()
            step()
    while not harness.is_idle():
        step()
        assert passes < 1_000
    return {rid: answer_of(req) for rid, req in requests.items()}


def answer_of(req: Any) -> tuple[Any, ...]:
    ended = req.finished_reason.to_json()["type"]
    if not req.return_logprob:
        return (ended, list(req.output_ids))
    logprobs = req.logprob
    rounded = [round(float(value), 2) for value in logprobs.output_token_logprobs_val]
    return (ended, list(req.output_ids), rounded, logprobs.output_top_logprobs_idx)


def is_penalised(rid: str) -> bool:
    return int(rid[1:]) % 6 in (0, 1, 4)


def wrong(answers: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    return [rid for rid in expected if answers[rid] != expected[rid]]


@pytest.fixture
def free(harness):
    harness.fresh()
    return harness.scheduler.token_to_kv_pool_allocator.available_size()


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_do_not_depend_on_who_sits_out(harness, expected, free, seed):
    harness.reconfigure()
    rows = park_at_random(harness, seed)
    answers = serve(harness)
    assert wrong(answers, expected) == []
    assert rows.partial > 0.8 * rows.steps
    assert rows.tails.counts["parks"] > REQUESTS
    check_nothing_is_left(harness, free)


def test_retraction_and_pauses(harness, expected, free, monkeypatch):
    harness.reconfigure()
    rows = park_at_random(harness, 3)
    monkeypatch.setattr("sglang.srt.managers.scheduler.TEST_RETRACT_INTERVAL", 7)
    void = 0

    def disturb(step: int) -> None:
        nonlocal void
        monkeypatch.setattr("sglang.srt.managers.scheduler.TEST_RETRACT", 10 < step < 60)
        if step in (25, 70):
            void += len(rows.tails)
            retract_all(harness)
        if step == 45:
            harness.pause("in_place")
            assert not harness.flush(), "a parked row is one that runs"
            harness.resume()

    answers = serve(harness, disturb)
    # Penalties begin anew with a retraction, with and without parking.
    assert [rid for rid in wrong(answers, expected) if not is_penalised(rid)] == []
    assert void, "nobody was parked when all were retracted"
    check_nothing_is_left(harness, free)


def test_an_aborted_row_ends_without_coming_back(harness, expected, free):
    harness.reconfigure()
    rows = park_at_random(harness, 5)
    aborted: dict[str, int] = {}

    def disturb(step: int) -> None:
        if step in (12, 24, 36):
            running = harness.scheduler.running_batch.reqs
            some = [req for req in running if req in rows.tails][:1] or running[:1]
            for req in [*some, *(req for req in running[-1:] if req not in some)]:
                if req in rows.tails:
                    aborted[req.rid] = rows.tails.counts["resumes"]
                harness.abort(req.rid)

    answers = serve(harness, disturb)
    ended = {rid for rid, answer in answers.items() if answer[0] == "abort"}
    assert aborted.keys() <= ended
    assert rows.tails.counts["ended_parked"] == len(aborted) > 0
    assert rows.tails.counts["parks"] == rows.tails.counts["resumes"] + len(aborted)
    assert [rid for rid in wrong(answers, expected) if rid not in ended] == []
    check_nothing_is_left(harness, free)


def retract_all(harness) -> None:
    """A pause; meanwhile nobody holds anything, on the device or the host."""
    harness.pause("retract")
    state = harness.scheduler.feather_rows.state()
    assert (state["parked"], state["host_tokens_free"]) == (0, state["host_tokens"])
    assert harness.flush()
    harness.resume()


FAULTS = {
    "a row whose prompt is in flight is parked": (rows_module, "settled", lambda req: True),
    "the KV does not come back": (HostSlab, "load", lambda self, begin, slots: None),
    "penalties count the last token that was seen": (
        hooks,
        "_before_next",
        lambda req: req.output_ids[-1] if req.output_ids else req.origin_input_ids[-1],
    ),
    "rows that sit out share penalties with those that do not": (batches, "_copy_of_penalties", lambda old, new: old),
    "a copy outlives a retraction": (Tails, "sweep", lambda self: None),
    "a prefill takes parked rows along": (Rows, "pass_begins", lambda self: None),
    "rows that end in flight are left out": (Rows, "_ending", lambda batch, finishing: []),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_noticed(start, fault, monkeypatch):
    mixed = "prefill" in fault
    name = "mixed chunks" if mixed else "overlap, page 1"
    harness = start(**SETTINGS[name])
    expected = answers_of(harness, name)
    harness.reconfigure()
    free = harness.scheduler.token_to_kv_pool_allocator.available_size()
    monkeypatch.setattr(*FAULTS[fault])
    park_at_random(harness, 7)

    def disturb(step: int) -> None:
        if "retraction" in fault and step in (12, 20, 28, 36):
            retract_all(harness)

    try:
        differ = wrong(serve(harness, disturb), expected)
        noticed = [rid for rid in differ if not ("retraction" in fault and is_penalised(rid))]
        if not noticed:
            check_nothing_is_left(harness, free)
    except Exception as error:
        noticed = [error]
    pool.discard()  # who knows what is left
    assert noticed


SMALL = {"max_total_tokens": 4_000, "schedule_conservativeness": 0.1}


def serve_under_pressure(harness, monkeypatch) -> tuple[list[tuple[str, list[int]]], int, int]:
    """40 requests of 200 to 300 new tokens in a pool for some 15: (what they were answered, rows that SGLang retracted,
    tokens computed more than once)."""
    retracted = 0
    retract = ScheduleBatch.retract_decode

    def count(batch, *args, **named):
        nonlocal retracted
        result = retract(batch, *args, **named)
        retracted += len(result[0])
        return result

    monkeypatch.setattr(ScheduleBatch, "retract_decode", count)
    harness.scheduler.new_token_ratio_tracker.reset()
    draw, tokens, requests = random.Random(0), Tokens(), []
    for _ in range(40):
        params = SamplingParams(max_new_tokens=draw.randrange(200, 301), temperature=0)
        params.normalize(None)
        harness.send(tokens.take(draw.randrange(32, 97)), sampling_params=params)
        requests.append(harness.queue[-1])
    most = 0
    while not harness.is_idle():
        harness.step()
        most = max(most, len(harness.scheduler.running_batch.reqs))
        assert harness.log.passes < 3_000
    assert most <= harness.scheduler.max_running_requests
    monkeypatch.undo()
    computed = sum(sum(batch.extends) for batch in harness.log.batches if batch.is_prefill)
    prompts = sum(len(req.origin_input_ids) for req in requests)
    answers = [(req.finished_reason.to_json()["type"], list(req.output_ids)) for req in requests]
    return answers, retracted, computed - prompts


@pytest.mark.parametrize(("page", "overlap"), [(1, True), (16, False)])
def test_nobody_is_retracted_or_computed_again(start, page, overlap, monkeypatch):
    harness = start(page_size=page, overlap=overlap, **SMALL)
    harness.reconfigure()
    free = harness.scheduler.token_to_kv_pool_allocator.available_size()
    expected, retracted, recomputed = serve_under_pressure(harness, monkeypatch)
    assert retracted > 10
    assert recomputed > 1_000

    harness.reconfigure()
    rows = park_under_pressure(harness)
    answers, retracted, recomputed = serve_under_pressure(harness, monkeypatch)
    assert (retracted, recomputed) == (0, 0)
    assert answers == expected
    assert rows.tails.counts["parks"] > 10
    assert rows.tails.counts["released"] == 0
    check_nothing_is_left(harness, free)

    # The fault that this test is for: a step is given rows that do not fit, and SGLang takes from them alone.
    if overlap:
        harness.reconfigure()
        rows = park_under_pressure(harness)
        fits = rows._choose
        rows._choose = lambda limits, residents: fits(replace(limits, kv_tokens=limits.kv_tokens + 200), residents)
        assert serve_under_pressure(harness, monkeypatch)[1] > 0


def test_little_room_on_the_host(start, monkeypatch):
    """What cannot be parked is computed again, as without parking; everybody ends."""
    harness = start(page_size=1, overlap=True, **SMALL)
    harness.reconfigure()
    free = harness.scheduler.token_to_kv_pool_allocator.available_size()
    rows = park_under_pressure(harness, host_tokens=150, most=2)
    answers, _, recomputed = serve_under_pressure(harness, monkeypatch)
    assert {ended for ended, _ in answers} == {"length"}
    assert rows.tails.counts["parks"] > 0
    assert recomputed > 0
    check_nothing_is_left(harness, free)


def test_a_real_model(request):
    """SmolLM2-135M in float32, rows at random: token for token what it says without."""
    pool.discard()
    request.addfinalizer(pool.discard)
    harness = pool.start(model_path=str(embedded_model()), load_format="auto", max_total_tokens=8_000)
    free = harness.scheduler.token_to_kv_pool_allocator.available_size()
    answers = []
    for park in (False, True):
        harness.reconfigure()
        if park:
            rows = park_at_random(harness, 1, host_tokens=2_000)
        draw, requests = random.Random(2), []
        for number in range(12):
            prompt = [draw.randrange(100, 40_000) for _ in range(draw.randrange(20, 200))]
            harness.send(prompt, new=10 + number % 4)
            requests.append(harness.queue[-1])
        harness.run()
        answers.append([list(req.output_ids) for req in requests])
    assert answers[0] == answers[1]
    assert rows.tails.counts["parks"] > 12
    check_nothing_is_left(harness, free)


@pytest.mark.parametrize("page", [1, 16])
def test_rows_of_which_the_tree_owns_nothing(start, page):
    """Prompts shorter than a page, parked, and then aborted, or sent back to the queue by a pause: as any other row."""
    harness = start(page_size=page)
    harness.reconfigure()
    free = harness.scheduler.token_to_kv_pool_allocator.available_size()
    rows = park_at_random(harness, 5)
    ended = 0
    for number in range(12):
        for _ in range(2):
            harness.send(Tokens().take(1 + number), new=60)
            harness.queue[-1].skip_radix_cache_insert = page == 1  # of any length
        for _ in range(9):
            harness.step()
        parked = [req for req in rows.tails._parked if not req.kv.cache_protected_len]
        ended += len(parked)
        if number % 2:
            harness.pause("retract")
            harness.resume()
        else:
            for req in parked[:1]:
                harness.abort(req.rid)
    harness.run()
    assert ended > 3, "nobody was parked whole"
    check_nothing_is_left(harness, free)
