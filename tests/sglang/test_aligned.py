"""Rows of similar length, or of one family, decode while others sit out: on SGLang's Scheduler, answers as before."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.server_args import prepare_server_args

from feather_sglang.bench.engine import draw_weights
from feather_sglang.bench.tiny_llama import write_model
from feather_sglang.core.selectors import aligned
from feather_sglang.core.selectors.cost import Cost
from feather_sglang.core.selectors.families import TURN
from tests.harness.parking import check_nothing_is_left, park_under_pressure
from tests.harness.prompts import Tokens, interleaved

pytestmark = pytest.mark.slow

REQUESTS, NEW = 20, 40


def serve(harness: Any) -> list[list[int]]:
    """Short prompts, one in five long, arriving while others run; what each was answered."""
    tokens, requests = Tokens(), []
    for number in range(REQUESTS):
        harness.send(tokens.take(700 if number % 5 == 4 else 40 + number), new=NEW + number % 4)
        requests.append(harness.queue[-1])
        if number % 4 == 3:
            harness.step()
    while not harness.is_idle():
        harness.step()
        assert harness.log.passes < 3_000
    assert {req.finished_reason.to_json()["type"] for req in requests} == {"length"}
    return [list(req.output_ids) for req in requests]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("pool_tokens", [60_000, 4_600])
def test_answers_of_aligned_batches(start, overlap, pool_tokens, monkeypatch):
    """In the small pool most rows that sit out are parked."""
    monkeypatch.setattr(aligned, "RUN", 8)
    monkeypatch.setattr(aligned, "PATIENCE", 24)
    harness = start(overlap=overlap, max_total_tokens=pool_tokens, schedule_conservativeness=0.1)
    draw_weights(harness.scheduler)
    harness.reconfigure()
    free = harness.scheduler.token_to_kv_pool_allocator.available_size()
    expected = serve(harness)

    harness.reconfigure(decode="aligned", align_rows=6, align_share=0.4)
    rows = park_under_pressure(harness)
    assert serve(harness) == expected
    selector = harness.scheduler.feather.core.selector
    assert (selector.steps, rows.partial if pool_tokens == 60_000 else 0) == (0, 0), "nobody knows what a step costs"

    harness.reconfigure(decode="aligned", align_rows=6, align_share=0.4)
    rows = park_under_pressure(harness)
    selector = harness.scheduler.feather.core.selector
    selector.cost.cost = Cost(step=1e-3, longest=1e-4)
    monkeypatch.setattr(selector.cost, "solve", lambda: selector.cost.cost)
    assert serve(harness) == expected
    state = harness.state()["feather"]
    assert state["decode"] == "aligned"
    assert state["selector_state"]["aligned_steps"] > 20
    assert state["selector_state"]["switches"] > 1
    assert rows.partial > 20
    if pool_tokens == 60_000:
        assert state["selector_state"]["longest_wait"] <= 24 + REQUESTS
    check_nothing_is_left(harness, free)


def test_families_in_turn(start):
    harness = start()
    families = Tokens().families(2, 4, 128, 16)
    answers = []
    for decode in ("all", "families"):
        harness.reconfigure(decode=decode)
        if decode == "families":
            park_under_pressure(harness)
        requests = []
        for number, prompt in enumerate(prompt for pair in zip(*families, strict=True) for prompt in pair):
            harness.send(prompt, new=2 * TURN, rid=f"f{number % 2}-{number}")
            requests.append(harness.queue[-1])
        harness.run()
        answers.append([list(req.output_ids) for req in requests])
    assert answers[0] == answers[1]
    steps = [{rid[:2] for rid in batch.rids} for batch in harness.log.batches if batch.mode == "DECODE"]
    assert sum(len(step) == 1 for step in steps) > 3 * TURN


def test_a_core_that_fails_to_choose_is_built_anew(start_alone, monkeypatch):
    """Who decodes is a decision, as who is admitted: what fails in it is not used again."""
    harness = start_alone()
    harness.reconfigure(decode="families")
    park_under_pressure(harness)
    core = harness.scheduler.feather.core
    choose = core.plan_decode

    def fail(limits, residents=()):
        if residents:
            raise RuntimeError("no choice")
        return choose(limits)

    monkeypatch.setattr(core, "plan_decode", fail)
    sent = harness.send_all(interleaved(Tokens().families(2, 4, 128, 16)), new=8)
    assert harness.run().finished.keys() == set(sent)
    adapter = harness.scheduler.feather
    assert (adapter.failures, adapter.fallen) == (1, None)
    assert adapter.core is not core


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--feather-park", "pressure", "--pp-size", "2"], "--pp-size"),
        (["--feather-decode", "aligned", "--pp-size", "2"], "--feather-decode does not go with --pp-size"),
        (["--feather-park", "pressure", "--speculative-algorithm", "NGRAM"], "--speculative-algorithm"),
        (["--feather-park", "pressure", "--disaggregation-mode", "prefill"], "--disaggregation-mode"),
        (["--feather-park", "pressure", "--enable-hierarchical-cache"], "--enable-hierarchical-cache"),
        (["--feather-park-host-tokens", "0"], "--feather-park-host-tokens is 0; expected at least 1"),
        (["--feather-park-rows", "-1"], "--feather-park-rows is -1"),
        (["--feather-align-share", "1.5"], "--feather-align-share 1.5: expected"),
    ],
)
def test_what_it_does_not_go_with_is_one_line(tmp_path, capsys, argv, part):
    model = write_model(tmp_path)
    with pytest.raises(SystemExit):
        prepare_server_args(["--model-path", str(model), "--schedule-policy", "feather", *argv])
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert part in lines[0]


def test_the_options(start_alone):
    harness = start_alone(options={"park": "pressure", "park_host_tokens": 777, "park_rows": 3, "decode": "families"})
    state = harness.state()["feather"]
    assert state["parking"]["host_tokens"] == 777
    assert state["decode"] == "families"
    assert harness.scheduler.feather_rows._most == 3
