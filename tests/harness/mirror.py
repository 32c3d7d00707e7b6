"""What must hold between two passes, whatever happened: the adapter's book, the core and the engine agree."""

from __future__ import annotations

from collections.abc import Collection

from feather_sglang.sglang.rows import Place, is_express
from tests.harness.scheduler import Harness


def check_mirror(harness: Harness, strangers: Collection[str] = ()) -> None:
    """:param strangers: rows that were admitted while the policy was switched off, which it need not know.
    :raises AssertionError: where the plugin's idea of the engine is not the engine.
    """
    scheduler = harness.scheduler
    adapter = scheduler.feather
    book = adapter.book
    if adapter.fallen is not None:
        assert adapter.core is None or adapter.failures
        assert not any((book.waiting, book.running, book.computing, book.express, book.ids)), "off, and it follows"
        return
    waiting = [t.req for t in (*book.waiting.values(), *book.express.values())]
    queue = list(scheduler.waiting_queue)
    assert sorted(map(id, waiting)) == sorted(map(id, queue)), (
        f"the policy knows {[r.rid for r in waiting]}, and in the queue are {[r.rid for r in queue]}"
    )
    batches = [b for b in (scheduler.running_batch, scheduler.last_batch) if b is not None]
    running = {id(r): r for b in batches for r in b.reqs}
    if scheduler.chunked_req is not None:
        running[id(scheduler.chunked_req)] = scheduler.chunked_req
    alive = {key for key, r in running.items() if not r.finished() and key not in set(map(id, queue))}
    known = {id(t.req): t for t in book.running.values()}
    # One that only waited to be answered, or for KV that it holds, is not followed any further.
    unknown = [req.rid for key in alive - known.keys() if not is_express(req := running[key])]
    assert set(unknown) <= set(strangers), f"the policy does not know of {unknown}"
    # A row that finished since the last pass is told in the next; so is one that was retracted into a full queue.
    for key in known.keys() - alive:
        req = known[key].req
        assert req.finished() or (req.retraction_count and scheduler.max_queued_requests is not None), req.rid
    assert all(t.place is Place.WAITING for t in book.waiting.values())
    assert all(t.place is Place.RUNNING for t in book.running.values())
    assert book.computing.keys() <= book.running.keys()
    if adapter.core is not None:
        adapter.core.check_integrity()
        index = adapter.core._index
        assert sorted(index.running()) == sorted(book.running), "the index runs others than the engine"
        assert index.stats()["waiting"] == len(book.waiting), "the index has another number waiting"
        assert all(id in index for id in book.waiting), "the index does not know who waits"
        due = adapter.mirror._due
        lost = [t.req.rid for t in book.running.values() if t.id not in due.get(t.due, ())]
        assert not lost, f"nobody looks any more whether the outputs of {lost} grew"
