"""The index over plain lists and real tokens: no hashes, no tree, every answer computed anew.

It leaves out what only scarcity brings about (kept rows, room, the fairness bound, a full cache); the naive model in
Rust states all of the rule.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Held:
    id: int
    chunks: list
    length: int
    arrival: tuple
    leads: bool
    lane: int = 0
    waits: bool = True
    aside: bool = False
    published: int = 0
    computing: bool = False
    refused: int = -1

    @property
    def shown(self):
        return self.chunks[: self.published]


def common(a, b):
    n = 0
    while n < len(a) and n < len(b) and a[n] == b[n]:
        n += 1
    return n


class NaiveIndex:
    def __init__(self, *, chunk_size, order, barrier_min):
        self.chunk, self.order, self.barrier_min = chunk_size, order, barrier_min
        self.requests = {}
        self.cached = []
        self.tentative = []
        self.passes = 0

    def insert(self, id, tokens, *, arrival, namespace, shareable, leads, lane):
        whole = min(shareable, len(tokens)) // self.chunk
        chunks = [(namespace, tuple(tokens[i * self.chunk : (i + 1) * self.chunk])) for i in range(whole)]
        self.requests[id] = Held(id, chunks, len(tokens), arrival, leads, lane)

    def set_lane(self, id, lane):
        self.requests[id].lane = lane

    def begin(self):
        self.passes += 1

    def publish(self, id, tokens, computing):
        request = self.requests[id]
        request.published = min(tokens // self.chunk, len(request.chunks))
        request.computing = request.computing and computing

    def leave(self, id, whole):
        request = self.requests.pop(id)
        self.tentative = [other for other in self.tentative if other != id]
        if not request.waits:
            self.cached.append(request.chunks if whole else request.shown)

    def forget(self):
        self.cached = []

    def undo(self, keep):
        for id in self.tentative[keep:]:
            self._take_back(self.requests[id])
        del self.tentative[keep:]

    def settle(self, reused, refused):
        for id in self.tentative:
            if id not in dict(reused):
                self._take_back(self.requests[id])
        self.tentative = []
        for id, tokens in reused:
            self._correct(self.requests[id], tokens)
        for id in refused:
            self.requests[id].refused = self.passes

    def plan(self, prefill):
        self.undo(0)
        for request in self.requests.values():
            request.aside = False
        order, alone, end = [], 0, None
        while end is None:
            if prefill <= 0:
                end = "prefill"
                continue
            first = self._first()
            if first is None:
                end = "nobody"
                continue
            request = self._leader_for(first)
            if self._is_held(request) or request.refused + 1 == self.passes:
                alone += self._is_held(request)
                request.aside = True
                continue
            order.append(self._name(request))
            prefill -= order[-1][1]
        return order, self.held() + alone, end

    def best(self):
        first = self._first()
        return first and (first.id, self._beyond(first, self._active(first)))

    def held(self):
        return sum(self._is_blocked(request) for request in self._waiting())

    def figures(self):
        rows = self._rows()
        distinct = {tuple(row.chunks[: n + 1]) for row in rows for n in range(row.published)}
        cached = {tuple(path[: n + 1]) for path in self.cached for n in range(len(path))}
        return {
            "waiting": len(self._waiting()),
            "held": self.held(),
            "running": len(rows),
            "tip_chunks": self._tip(),
            "total_kv": sum(row.length for row in rows),
            "distinct_kv": sum(row.length - row.published * self.chunk for row in rows) + len(distinct) * self.chunk,
            "cached_tokens": len(cached) * self.chunk,
        }

    def shared_along(self, order):
        shown = [self.requests[id].shown for id in order]
        return [self.chunk * common(*pair) for pair in zip([[], *shown], shown, strict=False)]

    def _waiting(self):
        return [request for request in self.requests.values() if request.waits]

    def _rows(self):
        return [request for request in self.requests.values() if not request.waits]

    def _active(self, request):
        return max((common(request.chunks, row.shown) for row in self._rows()), default=0)

    def _published(self, request):
        return max([self._active(request), *(common(request.chunks, path) for path in self.cached)])

    def _pending(self, request):
        """Chunks that a row computes for others, beyond what is published."""
        computed = (common(request.chunks, row.chunks) for row in self._rows() if row.computing)
        return max(0, max(computed, default=0) - self._published(request))

    def _is_blocked(self, request):
        pending = self._pending(request)
        return pending > 0 and pending * self.chunk >= self.barrier_min

    def _is_held(self, request):
        saved = self._pending(request) * self.chunk
        return self._is_blocked(request) or (saved > 0 and 4 * saved >= self._uncomputed(request))

    def _beyond(self, request, chunks):
        return max(1, request.length - chunks * self.chunk)

    def _uncomputed(self, request):
        return self._beyond(request, self._published(request))

    def _tip(self):
        rows = self._rows()
        return min((common(rows[0].shown, row.shown) for row in rows), default=0)

    def _first(self):
        offered = [request for request in self._waiting() if not request.aside and not self._is_blocked(request)]
        if not offered:
            return None
        active = {request.id: self._active(request) for request in offered}
        if self.order == "missing":
            return min(offered, key=lambda r: (r.lane, r.length - active[r.id] * self.chunk, r.arrival[1]))

        def most_held(request):
            held = active[request.id]
            being_computed = self._pending(request) + self._published(request) > held and self._pending(request)
            rows = 0 if being_computed else sum(common(request.chunks, row.shown) >= held for row in self._rows())
            return request.lane, -held, -rows, request.arrival

        best, oldest = min(offered, key=most_held), min(offered, key=lambda r: (r.lane, r.arrival))
        more = (active[best.id] - active[oldest.id]) * self.chunk
        return best if more >= self.barrier_min else oldest

    def _leader_for(self, request):
        published = self._published(request)
        if published == len(request.chunks) or not request.leads or self._pending(request):
            return request
        same = lambda r: common(r.chunks, request.chunks) > published  # noqa: E731
        family = [other for other in self._waiting() if not other.aside and same(other)]

        def key(member):
            shared = max((common(member.chunks, o.chunks) for o in family if o is not member), default=0)
            tokens, sequence = member.arrival
            return -shared, member.lane, member.length if self.order == "missing" else tokens, sequence

        leader = min(family, key=key)
        return leader if leader.lane == request.lane else request

    def _name(self, request):
        published = self._published(request)
        uncomputed, unheld = self._uncomputed(request), self._beyond(request, self._active(request))
        before = self._tip()
        shared = min((common(request.chunks[:published], row.shown) for row in self._rows()), default=published)
        self._admit(request)
        self.tentative.append(request.id)
        peers = sum(common(other.chunks, request.chunks) >= shared for other in self._waiting())
        return request.id, uncomputed, request.length, unheld, before, shared, peers

    def _admit(self, request):
        request.published = self._published(request)
        request.waits = False
        request.computing = request.leads and request.published != len(request.chunks)

    def _take_back(self, request):
        request.waits, request.published, request.computing = True, 0, False

    def _correct(self, request, tokens):
        if request.waits:
            self._admit(request)
        expected, found = request.published, tokens // self.chunk
        request.published = min(found, len(request.chunks))
        if found < min(expected, (request.length - 1) // self.chunk):
            request.computing = request.leads
            if self._active(request) <= found:
                self.cached = [path for path in self.cached if common(path, request.chunks) <= found]
