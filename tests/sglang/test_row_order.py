"""Rows sorted by family: everything that SGLang keeps by row goes with them, and every answer stays as it was."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from sglang.srt.layers import sampler
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.runtime_context import get_exec
from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from feather_sglang.sglang import row_order
from tests.harness.prompts import Tokens, interleaved
from tests.harness.tokenizer import write_tokenizer

FAMILIES, MEMBERS, NEW = 3, 6, 24


def fields_of(number: int, tokenizer: Any) -> dict[str, Any]:
    """What a request asks for, another thing for each: all that SGLang keeps by row."""
    sampling: dict[str, Any] = {"max_new_tokens": NEW, "ignore_eos": True, "temperature": 0}
    fields: dict[str, Any] = {}
    match number % 10:
        case 0:
            sampling |= {"temperature": 0.8, "sampling_seed": 100 + number}
        case 1:
            sampling |= {"frequency_penalty": 1.5, "presence_penalty": 0.5}
        case 2:
            sampling |= {"repetition_penalty": 1.7}
        case 3:
            sampling |= {"logit_bias": {str(1000 + number): 50.0}}
        case 4:
            fields |= {"return_logprob": True, "top_logprobs_num": 3}
        case 5:
            sampling |= {"temperature": 1.2, "top_p": 0.9, "top_k": 40, "sampling_seed": 7}
        case 6:
            sampling |= {"temperature": 0.5, "sampling_seed": 8, "custom_params": {"token_ids": [7, 11]}}
            fields |= {"custom_logit_processor": DisallowedTokensLogitsProcessor.to_str()}
        case 7:
            sampling |= {"presence_penalty": 2.0, "min_new_tokens": 5}
            fields |= {"return_logprob": True, "top_logprobs_num": 1}
        case 8:
            sampling |= {"max_new_tokens": NEW // 3, "frequency_penalty": 2.0}
        case 9:
            sampling |= {"regex": f"({number}[a-f]){{{NEW}}}", "max_new_tokens": NEW - 2}
    params = SamplingParams(**sampling)
    params.normalize(tokenizer)
    return fields | {"sampling_params": params}


def family_of(rid: str) -> str:
    return rid.split("-")[0]


def serve(harness: Any) -> dict[str, tuple[Any, ...]]:
    """Members of all families in turns, joining while others decode; what each was answered."""
    requests, tokenizer = {}, harness.scheduler.tokenizer
    families = Tokens().families(FAMILIES, MEMBERS, 128, 24)
    for member in range(MEMBERS):
        for family in range(FAMILIES):
            rid = f"f{family}-{member}"
            harness.send(families[family][member], rid=rid, **fields_of(member * FAMILIES + family, tokenizer))
            compiling = harness.scheduler.grammar_manager.grammar_queue
            requests[rid] = (compiling or harness.queue)[-1]
            if compiling:  # so that every run has it in the same step
                compiling[-1].grammar.result()
            harness.step()
        harness.step()
    harness.run()
    return {rid: answer_of(req) for rid, req in requests.items()}


def answer_of(req: Any) -> tuple[Any, ...]:
    assert req.finished_reason.to_json()["type"] == "length"
    logprobs = req.logprob
    if not req.return_logprob:
        return (list(req.output_ids),)
    rounded = [round(float(value), 4) for value in logprobs.output_token_logprobs_val]
    return (list(req.output_ids), rounded, logprobs.output_top_logprobs_idx)


def borders(rids: tuple[str, ...]) -> tuple[int, int]:
    """(Neighbours of different families, the fewest that there can be)."""
    names = [family_of(rid) for rid in rids]
    return sum(a != b for a, b in pairwise(names)), len(set(names)) - 1


def unsorted_steps(log: Any) -> int:
    """Decode steps in which a family was not in one piece."""
    return sum(found > fewest for found, fewest in (borders(b.rids) for b in log.batches if b.mode == "DECODE"))


def draw_with_seeds(logprobs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """SGLang's ``multinomial_with_seed`` without its kernel, which is not built for this CPU."""
    drawn = []
    for row, s, position in zip(logprobs.double().exp(), seed.tolist(), positions.tolist(), strict=True):
        drawn.append(torch.multinomial(row, 1, generator=torch.Generator().manual_seed(s * 1_000_003 + position)))
    return torch.stack(drawn)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(params=["overlap", "no overlap", "mixed chunks"])
def harness(request, start, monkeypatch, tokenizer):
    settings = {
        "overlap": request.param != "no overlap",
        "enable_custom_logit_processor": True,
        "skip_tokenizer_init": False,
        "tokenizer_path": str(tokenizer),
        "grammar_backend": "xgrammar",
    }
    if request.param == "mixed chunks":
        settings |= {"enable_mixed_chunk": True, "chunked_prefill_size": 96}
    harness = start(**settings)
    # SGLang honours seeds only in a mode that wants a GPU for its kernels when it starts; what samples asks here.
    monkeypatch.setattr(sampler, "multinomial_with_seed", draw_with_seeds)
    with get_exec().deterministic.override(enable_deterministic_inference=True):
        yield harness


@pytest.mark.slow
def test_answers_do_not_depend_on_the_order_of_rows(harness):
    harness.reconfigure(row_order=False)
    expected = serve(harness)
    assert len({str(answer) for answer in expected.values()}) > 0.8 * len(expected)
    assert unsorted_steps(harness.log) > NEW // 2

    harness.reconfigure()
    answers = serve(harness)
    order = harness.scheduler.feather.row_order
    assert order.moves >= MEMBERS - 2
    assert unsorted_steps(harness.log) == 0
    assert answers == expected

    # The fault that this test is for: requests that move while what belongs to their rows stays.
    def only_requests(batch: ScheduleBatch, permutation: list[int]) -> None:
        batch.reqs = [batch.reqs[i] for i in permutation]

    harness.reconfigure()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_order, "_permute", only_requests)
        wrong = serve(harness)
    assert sum(wrong[rid] != expected[rid] for rid in expected) > len(expected) // 2


def test_rows_are_sorted_when_some_joined_and_not_in_every_step(start):
    harness = start(max_running_requests=12)
    rids = harness.send_all(interleaved(Tokens().families(3, 4, 128, 16)), new=40)
    while len(harness.log.first_token) < len(rids):
        harness.step()
    harness.step()
    order = harness.scheduler.feather.row_order
    sorts, steps = order.sorts, harness.log.steps
    assert sorts <= sum(batch.is_prefill for batch in harness.log.batches)
    harness.abort("r4")  # a row that leaves, and then all of them, one after the other
    harness.run()
    assert harness.log.steps > steps + 20
    assert order.sorts == sorts


@pytest.mark.slow
def test_rows_that_came_back_from_a_retraction_are_sorted_again(start, monkeypatch):
    monkeypatch.setattr("sglang.srt.managers.scheduler.TEST_RETRACT", True)
    monkeypatch.setattr("sglang.srt.managers.scheduler.TEST_RETRACT_INTERVAL", 7)
    harness = start()
    answers = []
    for ordered in (False, True):
        harness.reconfigure(row_order=ordered)
        requests = []
        for i, prompt in enumerate(interleaved(Tokens().families(2, 3, 64, 16))):
            harness.send(prompt, new=40, rid=f"f{i % 2}-{i}")
            requests.append(harness.queue[-1])
            harness.step()
            harness.step()
        harness.run()
        retractions = sum(req.retraction_count for req in requests)
        assert retractions > 2
        # SGLang sorts what is left by length when it retracts, just before the step.
        assert (unsorted_steps(harness.log) > retractions) is not ordered
        answers.append([list(req.output_ids) for req in requests])
    assert answers[0] == answers[1]


def test_where_rows_are_left_alone(start, monkeypatch):
    scheduler = start().scheduler
    assert row_order.without_order(scheduler) is None
    monkeypatch.setattr(scheduler, "enable_hisparse", True)
    assert "sparse" in row_order.without_order(scheduler)
    monkeypatch.setattr(scheduler.model_config, "is_encoder_decoder", True)
    assert "encoder" in row_order.without_order(scheduler)
    monkeypatch.setattr(scheduler, "spec_algorithm", SpeculativeAlgorithm.NGRAM)
    assert "speculative" in row_order.without_order(scheduler)


def test_the_option(start_alone):
    harness = start_alone(options={"row_order": "off"})
    assert harness.scheduler.feather.row_order is None
    assert harness.state()["feather"]["row_order"] == "off"
