"""A server that is measured: one of ours, or a user's."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class Target:
    """Where it is, and what may be done to it."""

    url: str
    pid: int | None = None
    """Its first process, if it runs here and is ours."""
    counts: bool = True
    """Whether its metrics count every forward pass."""
    flushes: bool = True
    """Whether its cache is dropped before a run."""
    api_key: str | None = None

    def get(self, path: str) -> str:
        """:raises OSError: if it does not answer."""
        return self._ask(path)

    def post(self, path: str, content: Any = None) -> str:
        """:raises OSError: if it does not answer, or refuses."""
        return self._ask(path, b"" if content is None else json.dumps(content).encode())

    def info(self) -> dict[str, Any]:
        """The answer of ``/server_info``."""
        info: dict[str, Any] = json.loads(self.get("/server_info"))
        return info

    def flush(self) -> None:
        """Drop the prefix cache."""
        self.post("/flush_cache")

    def cpu_seconds(self) -> float | None:
        """User and system time of its processes; None: they are not here."""
        return None if self.pid is None else cpu_seconds(self.pid)

    def _ask(self, path: str, body: bytes | None = None) -> str:
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        with urllib.request.urlopen(urllib.request.Request(self.url + path, body, headers), timeout=600) as answer:
            content: bytes = answer.read()
            return content.decode()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of all that it started."""
    process = psutil.Process(pid)
    return sum(sum(each.cpu_times()[:2]) for each in [process, *process.children(recursive=True)])
