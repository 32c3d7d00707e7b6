"""What else SGLang can do, with the policy on: everybody ends, and the book is right after every pass."""

from __future__ import annotations

import re
from array import array
from pathlib import Path

import pytest
import torch
from sglang.srt.constants import HEALTH_CHECK_RID_PREFIX
from sglang.srt.managers import io_struct
from sglang.srt.managers.embed_types import PositionalEmbeds
from sglang.srt.sampling.sampling_params import SamplingParams

from feather_sglang.sglang import coexistence
from feather_sglang.sglang.arguments import resolved_of
from tests.harness.adapters import adapter_settings
from tests.harness.ends import Ends
from tests.harness.mirror import check_mirror
from tests.harness.prompts import Tokens, interleaved
from tests.harness.tokenizer import write_tokenizer

ROOT = Path(__file__).parents[2]
ROOMY = 400_000


def run_checked(harness):
    """To the end, as the event loop goes."""
    while not harness.is_idle():
        harness.scheduler.ingest_requests()
        harness.step()
        check_mirror(harness)
        assert harness.log.passes < 3_000
    assert harness.scheduler.feather.failures == 0
    return harness.log


@pytest.mark.slow
def test_lora_adapters_are_families_of_their_own_and_wait_for_a_place(start_alone, tmp_path):
    """Three adapters and the bare model, two of which may be in a batch: what cannot be loaded yet is passed over."""
    harness = start_alone(**adapter_settings(tmp_path, 3, most=2))
    ids = [None, *(ref.lora_id for ref in resolved_of(harness.server_args).lora_paths)]
    prefix = Tokens().take(512)
    sent = {
        harness.send(prefix + [9 + number] * 16, 8, rid=f"{lora}-{number}", lora_id=ids[lora]): lora
        for number in range(4)
        for lora in range(4)
    }
    log = run_checked(harness)
    assert set(log.finished) == set(sent)
    for lora in range(4):
        cached = sorted(log.cached[rid] for rid, of in sent.items() if of == lora)
        assert cached == [0, 512, 512, 512]
    for batch in log.batches:
        assert len({sent[rid] for rid in batch.rids}) <= 2


@pytest.mark.slow
def test_embeddings_are_ordered_and_no_gate_is_asked(start_alone):
    harness = start_alone(is_embedding=True, max_running_requests=2)
    harness.reconfigure("feather", gate="static", order="held")
    ends = Ends(harness.scheduler)
    params = SamplingParams(max_new_tokens=0)
    params.normalize(None)
    tokens = Tokens()
    for number, prompt in enumerate(interleaved(tokens.families(2, 3, 512, 16))):
        required = {"input_text": "", "mm_inputs": None, "token_type_ids": None, "sampling_params": params}
        harness.control(
            io_struct.TokenizedEmbeddingReqInput(rid=f"e{number}", input_ids=array("q", prompt), **required)
        )
    assert len(harness.queue) == 6
    assert not harness.scheduler.feather.budgets.may_stop(harness.scheduler.running_batch)
    log = run_checked(harness)
    assert set(ends.count) == {f"e{number}" for number in range(6)}
    assert log.cached_tokens == 4 * 512
    assert harness.state()["feather"]["gate_asked"] == 0


@pytest.mark.slow
def test_grammars_enter_the_queue_in_the_middle_of_a_pass(start_alone, tmp_path):
    settings = {"skip_tokenizer_init": False, "tokenizer_path": str(write_tokenizer(tmp_path))}
    harness = start_alone(grammar_backend="xgrammar", **settings)
    scheduler = harness.scheduler
    ends = Ends(scheduler)
    (prompts,) = Tokens().families(1, 6, 512, 16)
    for number, prompt in enumerate(prompts):
        sampling = {"max_new_tokens": 8, "temperature": 0}
        if number % 2:
            sampling["regex"] = f"({number}[a-f]){{4}}"
        params = SamplingParams(**sampling)
        params.normalize(scheduler.tokenizer)
        harness.send(prompt, rid=f"g{number}", sampling_params=params)
    compiling = list(scheduler.grammar_manager.grammar_queue)
    assert len(compiling) == 3
    harness.abort("g5")  # in the grammar queue: it becomes a stub
    for req in compiling[:2]:
        req.grammar.result()
    run_checked(harness)
    assert ends.count == {f"g{number}": 1 for number in range(6)}
    assert ends.kinds["g5"] == "abort"


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
def test_sessions(start_alone, streaming):
    """Turns of two sessions beside other requests; a streaming session appends to the arrays of its last turn."""
    harness = start_alone(enable_streaming_session=streaming, max_running_requests=4)
    tokens = Tokens()
    sessions = ["s0", "s1"]
    for session in sessions:
        opened = io_struct.OpenSessionReqInput(capacity_of_str_len=10_000, session_id=session, streaming=streaming)
        harness.control(opened)
    last: dict[str, str | None] = dict.fromkeys(sessions)
    for turn in range(3):
        for session in sessions:
            at = None if streaming else last[session]
            params = io_struct.SessionParams(id=session, rid=at)
            last[session] = harness.send(tokens.take(200), 6, rid=f"{session}-{turn}", session_params=params)
        harness.send_all([tokens.take(120) for _ in range(3)], 6)
        log = run_checked(harness)
    assert {f"{session}-{turn}" for session in sessions for turn in range(3)} <= set(log.finished)
    for session in sessions:
        assert log.cached[f"{session}-2"] >= 400, "a turn finds the ones before it"
        harness.control(io_struct.CloseSessionReqInput(session_id=session))
    check_mirror(harness)
    assert harness.flush()
    assert harness.state()["feather"]["nodes"] == 1


@pytest.mark.slow
def test_beam_groups_take_rows_that_the_plan_did_not_count(start_alone):
    """A group takes as many rows as it has beams; it waits its turn, and its rows are never sorted apart."""
    harness = start_alone(max_running_requests=6)
    ends = Ends(harness.scheduler)
    (prompts,) = Tokens().families(1, 12, 256, 16)
    for number, prompt in enumerate(prompts):
        params = SamplingParams(max_new_tokens=8, temperature=0, ignore_eos=True)
        if number % 3 == 0:
            params = SamplingParams(max_new_tokens=8, beam_width=3)
        params.normalize(None)
        harness.send(prompt, rid=f"b{number:02}", sampling_params=params)
        harness.step()
        check_mirror(harness)
    run_checked(harness)
    assert ends.count == {f"b{number:02}": 1 for number in range(12)}
    assert set(ends.kinds.values()) == {"length"}


def test_what_cannot_be_shared_leads_nobody_and_waits_for_nobody(start):
    """Embeddings at some positions, and log probabilities of the prompt from its start."""
    harness = start(max_total_tokens=ROOMY)
    harness.reconfigure("feather", chunked_prefill_size=8192)
    (prompts,) = Tokens().families(1, 6, 1024, 16)
    hidden = harness.scheduler.model_config.hidden_size
    overrides = PositionalEmbeds(embeds=torch.zeros(1, hidden), positions=[3])
    special = [
        harness.send(prompts[0], 4, positional_embed_overrides=overrides),
        harness.send(prompts[1], 4, return_logprob=True, logprob_start_len=0),
    ]
    family = harness.send_all(prompts[2:], 4)
    requests = {tracked.req.rid: tracked.req for tracked in harness.scheduler.feather.book.waiting.values()}
    assert requests[special[0]].positional_embed_overrides is not None
    harness.step()
    assert set(harness.log.admitted) == {*special, family[0]}, "they wait for nobody, and the family for its own"
    log = run_checked(harness)
    assert [log.cached[rid] for rid in special] == [0, 0]
    assert [log.cached[rid] for rid in family] == [0, 1024, 1024, 1024]


DELAYS = {
    "interval": {"scheduler_recv_interval": 4, "min_free_slots_delay": 2, "prefill_decode_interval": 2},
    "delayer": {"enable_prefill_delayer": True, "prefill_delayer_queue_min_ratio": 0.5},
}


@pytest.mark.slow
@pytest.mark.parametrize("delay", DELAYS)
def test_what_delays_admission_composes(start_alone, delay):
    """Requests read in every fourth pass, slots freed in pairs, decode steps between two prefills; the prefill delayer;
    and health checks among them."""
    harness = start_alone(max_running_requests=4, **DELAYS[delay])
    sent = []
    for prompt in interleaved(Tokens().families(3, 5, 256, 16)):
        sent.append(harness.send(prompt, 7))
        harness.scheduler.ingest_requests()
        harness.step()
        check_mirror(harness)
    harness.send([5, 6, 7], 1, rid=f"{HEALTH_CHECK_RID_PREFIX}_busy")  # dropped: what runs answers it
    run_checked(harness)
    check = harness.send([5, 6, 7], 1, rid=f"{HEALTH_CHECK_RID_PREFIX}_idle")
    log = run_checked(harness)
    assert set(log.finished) == {*sent, check}
    assert log.cached_tokens >= 12 * 256


def test_every_decision_is_in_the_document():
    text = (ROOT / "docs/coexistence.md").read_text()
    tables = (
        coexistence.REFUSED,
        coexistence.INERT,
        coexistence.ORDERED_ONLY,
        coexistence.ROWS_LEFT_ALONE,
        coexistence.ROWS_ALL_DECODE,
    )
    missing = [case.what for cases in tables for case in cases if case.what not in text]
    assert missing == []


NAMED = re.compile(r"`((?:tests|cht-rs)/[\w/]+\.(?:py|rs))(?:::(\w+))?`")


def rows(section):
    lines = (ROOT / "docs/coexistence.md").read_text().split("\n## ")[section].splitlines()
    table = [line for line in lines if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_feature_names_a_test_that_there_is_or_a_reason():
    features = rows(0)
    assert len(features) > 35
    for feature, verdict, shown in features:
        assert verdict in ("works", "ordering only", "inert", "refused", "not run here"), feature
        assert NAMED.search(shown) or (verdict == "not run here" and len(shown) > 20), feature


def test_every_report_names_a_test():
    reports = rows(1)
    assert len(reports) == 27
    without = [report for report, shown in reports if not NAMED.search(shown)]
    assert without == ["sglang 38536: a loss end to end where prefixes are short"], "which is a bench"


@pytest.mark.parametrize("section", [0, 1])
def test_every_test_that_is_named_exists(section):
    for *_, shown in rows(section):
        for path, name in NAMED.findall(shown):
            text = (ROOT / path).read_text()
            assert not name or re.search(rf"(def|fn) {name}\(", text), f"there is no {path}::{name}"
