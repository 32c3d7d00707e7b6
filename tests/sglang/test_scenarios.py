"""What users of prefix-aware schedulers ran into, each report a small scenario on the real Scheduler."""

from __future__ import annotations

import pytest
from sglang.srt.sampling.sampling_params import SamplingParams

from feather_sglang.core.interface import Limits, Phase, Request, Row
from feather_sglang.core.scheduler import SchedulerCore
from feather_sglang.core.settings import Settings
from tests.harness.mirror import check_mirror
from tests.harness.prompts import Tokens, interleaved

ROOMY = 400_000


@pytest.mark.slow
@pytest.mark.parametrize(("order", "aging"), [("held", 0.0), ("missing", 0.0), ("missing", 0.5)])
def test_one_cold_request_among_warm_arrivals(start_alone, order, aging):
    """sglang#31954, #31723: it is displaced by no more than the fairness bound, and less under ageing."""
    bound = 20_000
    harness = start_alone(max_total_tokens=ROOMY, max_running_requests=2)
    harness.reconfigure("feather", order=order, aging=aging, max_wait_tokens=bound)
    tokens = Tokens()
    prefix = tokens.take(4096)
    harness.send(prefix + tokens.take(16), 4)
    harness.step()
    cold = harness.send(tokens.take(600), 4)
    core = harness.scheduler.feather.core
    asked = core.scheduled_tokens
    waited = None
    for _ in range(400):
        harness.send(prefix + tokens.take(16), 4)
        harness.step()
        if waited is None and cold in harness.log.admitted:
            waited = core.scheduled_tokens - asked
    assert waited is not None, "the cold request was starved"
    slack = 3 * 4200  # what one pass schedules is seen a pass later
    assert waited <= bound + slack
    if aging:
        # 600 tokens that nobody holds, against 16: ageing has it first after (600 - 16) / 0.5 tokens.
        assert waited <= (600 - 16) / aging + slack


def test_no_cliff_where_the_queue_grows():
    """sglang#37844: the order at 129 extends the order at 128, and the work of a pass does not follow the queue."""

    def first_pass(waiting: int) -> tuple[list[int], int]:
        core = SchedulerCore(Settings())
        prefixes = [[1] * 1024, [2] * 1024]
        for i in range(waiting):
            tokens = [prefixes[i % 2] + [10 + i] * 16]
            core.enqueue(Request(id=i, length=1040, arrival=(0, i), tokens=tokens))
        core.begin([], [])
        core.settle({0: 0, 1: 0}, {})
        core.begin([], [0, 1])
        core.begin([Row(0, Phase.DECODING, 1040), Row(1, Phase.DECODING, 1040)], [0, 1])
        before = core._index.stats()
        plan = core.plan_admissions(Limits(kv_tokens=1 << 30, rows=64, prefill_tokens=1 << 20))
        after = core._index.stats()
        work = sum(after[name] - before[name] for name in ("queue_operations", "nodes_visited", "looked_at"))
        return [candidate.id for candidate in plan.order], work

    sizes = [127, 128, 129, 1000, 5000]
    orders, works = zip(*(first_pass(size) for size in sizes), strict=True)
    assert all(order == orders[0][: len(order)] for order in orders)
    assert all(len(order) == 64 for order in orders)
    assert max(works) == min(works), works


@pytest.mark.slow
def test_a_head_that_does_not_fit(start_alone):
    """sglang#38478, #38495: those behind it go first, nothing is over-committed, and it has its turn."""
    harness = start_alone(max_total_tokens=14_000)
    harness.reconfigure("feather", max_wait_tokens=3_000)
    tokens = Tokens()
    for _ in range(4):
        harness.send(tokens.take(2_900), 60)
    for _ in range(4):
        harness.step()
    big = harness.send(tokens.take(10_000), 4)
    small = [harness.send(tokens.take(100), 4) for _ in range(5)]
    for _ in range(6):
        harness.step()
    assert set(small) <= set(harness.log.admitted)
    assert big not in harness.log.admitted
    empty = 0
    while big not in harness.log.admitted:
        harness.send(tokens.take(100), 4)
        empty = 0 if harness.step() is not None else empty + 1
        assert empty <= 2, "the engine stood still"  # a result in flight costs a pass, as under any policy
        assert harness.log.passes < 2_000, "the big request was starved"
    harness.run()
    assert harness.state()["feather"]["running"] == 0


@pytest.mark.slow
def test_four_cold_prompts_on_four_rows(start_alone):
    """sglang#35537: chunked, with a gate that could stop; all four run together."""
    harness = start_alone(max_total_tokens=ROOMY, max_running_requests=4)
    tokens = Tokens()
    harness.reconfigure("feather", gate="static", chunked_prefill_size=512)
    ids = [harness.send(tokens.take(1_500), 40) for _ in range(4)]
    log = harness.run()
    assert set(ids) == set(log.finished)
    assert max(len(b.rids) for b in log.batches if b.mode == "DECODE") == 4


@pytest.mark.slow
def test_a_stop_lasts_one_pass(start_alone):
    """While a family runs, strangers would cost it its tip; nothing stays latched when it has ended."""
    harness = start_alone(max_total_tokens=ROOMY, max_running_requests=4)
    tokens = Tokens()
    harness.reconfigure("feather", gate="static")
    prefix = tokens.take(1_500)
    family = [harness.send(prefix + tokens.take(20), 60) for _ in range(2)]
    for _ in range(12):
        harness.step()
    harness.scheduler.feather.core.gate.floor = 1  # every admission raised it
    strangers = [harness.send(tokens.take(1_500), 8) for _ in range(2)]
    log = harness.run()
    assert harness.state()["feather"]["stops"] > 20
    assert set(log.finished) == {*family, *strangers}
    ended = max(log.finished[rid] for rid in family)
    started = min(b.step for b in log.batches if strangers[0] in b.rids)
    assert ended - 3 <= started <= ended + 2


@pytest.mark.slow
def test_a_request_larger_than_the_pool(start_alone):
    """sglang#14948: it gets its error, the others go on."""
    harness = start_alone(max_total_tokens=4_000)
    harness.reconfigure("feather")
    tokens = Tokens()
    before = [harness.send(tokens.take(300), 8) for _ in range(3)]
    huge = harness.send(tokens.take(6_000), 8)
    request = harness.queue[-1]
    after = [harness.send(tokens.take(300), 8) for _ in range(3)]
    log = harness.run()
    assert {*before, huge, *after} <= set(log.finished)
    assert request.rid == huge
    assert "exceeds the maximum allowed length" in request.finished_reason.to_json()["message"]


@pytest.mark.slow
def test_an_id_that_is_aborted_and_sent_again(start):
    """sglang#24070: accepted; index, heap and maps return to their baseline."""
    harness = start(max_total_tokens=ROOMY)
    harness.reconfigure("feather")
    prompt = Tokens().take(512)
    base = harness.state()["feather"]
    for _ in range(3):
        rid = harness.send(prompt, 8, rid="again")
        harness.abort(rid)
        assert harness.state()["feather"]["waiting"] == 0
    harness.send(prompt, 8, rid="again")
    log = harness.run()
    assert "again" in log.finished
    harness.flush()
    state = harness.state()["feather"]
    assert {k: state[k] for k in ("waiting", "running", "nodes")} == {
        k: base[k] for k in ("waiting", "running", "nodes")
    }


SPACES = {
    "salts": ([{"cache_salt": s} for s in ("a", "b", "c", "d", "e")], 5),
    "pairs": ([{"extra_key": "a", "cache_salt": "bc"}, {"extra_key": "ab", "cache_salt": "c"}], 2),
    "absent and empty": ([{"extra_key": None}, {"extra_key": ""}], 2),
    "equal": ([{"cache_salt": "a"}, {"cache_salt": "a"}], 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
def test_namespaces_are_families(start, name):
    """sglang#24638, #30827, ktransformers#2184: as many families, and so leaders, as distinct tuples."""
    spaces, families = SPACES[name]
    harness = start(max_total_tokens=ROOMY)
    harness.reconfigure("feather", chunked_prefill_size=8192)
    prefix = Tokens().take(512)
    ids = [harness.send(prefix + [9 + i] * 16, 8, **space) for i, space in enumerate(spaces)]
    harness.step()
    assert len(harness.log.admitted) == families
    log = harness.run()
    assert set(log.finished) == set(ids)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["api", "queue limit", "timeout"])
def test_aborts_have_one_way_out(start_alone, monkeypatch, how):
    """sglang#20182, #16067: by API, by queue limit and by timeout, in every state; nothing is left of it."""
    harness = start_alone(max_total_tokens=ROOMY, max_running_requests=2)
    harness.reconfigure("feather", chunked_prefill_size=512)
    tokens = Tokens()
    (prompts,) = tokens.families(1, 8, 1024, 16)
    if how == "queue limit":
        monkeypatch.setattr(harness.scheduler, "max_queued_requests", 3)
    ids = []
    for prompt in prompts:
        ids.append(harness.send(prompt, 64))
        check_mirror(harness)
    if how == "queue limit":
        assert len(harness.queue) == 3
    for _ in range(4):  # one is chunked, then one runs, the others wait
        harness.step()
        check_mirror(harness)
    if how == "timeout":
        # Upstream's leader turns a timeout into these messages (``Scheduler._poll_timeout_aborts``).
        monkeypatch.setenv("SGLANG_REQ_WAITING_TIMEOUT", "1e-9")
        aborts = harness.scheduler._poll_timeout_aborts()
        assert len(aborts) == len(harness.queue) > 0
        for abort in aborts:
            harness.control(abort)
    elif how == "api":
        for rid in ids:
            harness.abort(rid)
            check_mirror(harness)
    assert how == "queue limit" or harness.queue == []
    harness.run()
    check_mirror(harness)
    harness.flush()
    state = harness.state()["feather"]
    assert (state["waiting"], state["running"], state["held"], state["nodes"]) == (0, 0, 0, 1)


def test_who_is_admitted_beside_the_last_chunk_of_an_aborted_prompt(start):
    """Aborted in its first chunk and retracted by a pause, it is computed once more, and no longer the policy's."""
    harness = start(chunked_prefill_size=256, max_running_requests=4)
    harness.reconfigure("feather")
    tokens = Tokens()
    long = harness.send(tokens.take(2 * 256 + 40), new=4)
    harness.step()
    harness.abort(long)
    harness.pause("retract")
    harness.resume()
    beside = [harness.send(tokens.take(100), new=4) for _ in range(2)]
    while not harness.is_idle():
        harness.step()
        check_mirror(harness)
    assert any({long, *beside} <= set(batch.rids) for batch in harness.log.batches), "nobody was beside it"


@pytest.mark.slow
@pytest.mark.parametrize("order", ["held", "missing"])
def test_a_pool_that_forces_retraction(start_alone, order):
    """sglang#26248, #38019: no ping-pong between admission and retraction; who comes back keeps age and family."""
    shared = 256
    # Room for some 15 rows at their end; SGLang is told to expect little of them when it admits.
    harness = start_alone(max_total_tokens=4_000, max_running_requests=40, schedule_conservativeness=0.1)
    harness.reconfigure("feather", order=order)
    requests = []
    harness.scheduler.new_token_ratio_tracker.reset()
    for i, prompt in enumerate(interleaved(Tokens().families(2, 20, shared, 16))):
        # Where it ignores the end of a text, SGLang takes no risk.
        params = SamplingParams(max_new_tokens=200 + i * 37 % 100, temperature=0)
        params.normalize(None)
        harness.send(prompt, sampling_params=params)
        requests.append(harness.queue[-1])
    arrivals = {req.rid: req.feather.arrival for req in requests}
    since: dict[str, int] = {}  # requests finished when one was retracted
    while not harness.is_idle():
        before = {req.rid: req.retraction_count for req in requests}
        harness.step()
        assert harness.log.passes < 3_000, "no progress"
        check_mirror(harness)
        for req in requests:
            if req.feather is not None:
                assert req.feather.arrival == arrivals[req.rid]
        for req in requests:
            if req.retraction_count > before[req.rid]:
                assert since.get(req.rid, -1) < len(harness.log.finished), "it goes back and forth"
                since[req.rid] = len(harness.log.finished)
    assert len(since) >= 10, "the pool forced few"
    assert harness.log.finished.keys() == arrivals.keys()
    readmitted = {
        rid: prefix
        for batch in harness.log.batches
        if batch.is_prefill
        for rid, prefix in zip(batch.rids, batch.prefixes, strict=True)
        if rid in since
    }
    again = [rid for rid, prefix in readmitted.items() if prefix < shared]
    assert len(again) <= 2, "of a family, at most the first that comes back finds its prefix gone"
