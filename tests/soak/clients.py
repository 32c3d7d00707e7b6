"""Clients of a live server that misbehave: they abort, hang up in the middle of a stream, or wait for no answer."""

from __future__ import annotations

import http.client
import json
import random
import threading
from collections import Counter
from typing import Any
from urllib.parse import urlsplit

from feather_sglang.bench.tiny_llama import VOCABULARY

PATIENCE = 120.0
"""Seconds without a byte from a server that works: it hangs."""


class Clients:
    """So many threads, each with one request at a time, until ``stop``.

    ``counts``: what became of requests; ``wrong``: answers that no client should get.
    """

    def __init__(self, url: str, clients: int, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._address = urlsplit(url)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        families = random.Random(seed)
        self._prefixes = [_tokens(families, families.randint(64, 1_500)) for _ in range(8)]
        draws = (random.Random(f"{seed} {client}") for client in range(clients))
        self._threads = [threading.Thread(target=self._client, args=(i, draw)) for i, draw in enumerate(draws)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Return when every client has had its last answer."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _client(self, client: int, draw: random.Random) -> None:
        number = 0
        while not self._stopped.wait(draw.expovariate(20.0)):
            number += 1
            what = draw.choices(
                ("answer", "stream", "hang up in a stream", "hang up at once", "abort"), (6, 4, 3, 2, 2)
            )[0]
            try:
                self._request(f"c{client:03}-{number:07}", what, draw)
                outcome = what
            except Exception as error:
                outcome = "error"
                self.wrong.append(f"{what}: {type(error).__name__}: {error}")
            with self._lock:
                self.counts[outcome] += 1

    def _request(self, rid: str, what: str, draw: random.Random) -> None:
        prompt = draw.choice(self._prefixes) + _tokens(draw, draw.randint(1, 200))
        sampling = {"max_new_tokens": draw.choice([1, 8, 64, 256]), "temperature": 0, "ignore_eos": True}
        streams = what in ("stream", "hang up in a stream", "abort")
        body: dict[str, Any] = {"rid": rid, "input_ids": prompt, "sampling_params": sampling, "stream": streams}
        if draw.random() < 0.3:
            body["cache_salt"] = draw.choice(["a", "b"])
        connection = self._post("/generate", body)
        try:
            if what == "hang up at once":
                return
            answer = connection.getresponse()
            if what == "hang up in a stream":
                answer.read(draw.randint(1, 2_000))
                return
            if what == "abort":
                answer.read(1)
                aborting = self._post("/abort_request", {"rid": rid})
                aborting.getresponse().read()
                aborting.close()
            text = answer.read()
            if answer.status != 200 and what != "abort":
                raise RuntimeError(f"{answer.status}: {text[:200]!r}")
            if streams and not text.rstrip().endswith(b"[DONE]"):
                raise RuntimeError(f"the stream ended with {text[-80:]!r}")
        finally:
            connection.close()

    def _post(self, path: str, body: dict[str, Any]) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._address.hostname or "", self._address.port, timeout=PATIENCE)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection


def _tokens(draw: random.Random, count: int) -> list[int]:
    return draw.choices(range(2, VOCABULARY), k=count)
