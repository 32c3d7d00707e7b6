"""How requests ended, as the Scheduler tells it to the processes behind it."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sglang.srt.managers.io_struct import AbortReq


class Ends:
    """Takes what a Scheduler sends to tokenizer and detokenizer, from here on."""

    def __init__(self, scheduler: Any) -> None:
        self.count: Counter[str] = Counter()
        """How often each request was said to have ended: once is right."""
        self.kinds: dict[str, str] = {}
        """``stop``, ``length`` or ``abort``."""
        channels = scheduler.ipc_channels
        for sender in (channels.send_to_tokenizer, channels.send_to_detokenizer):
            sender.send_output = self._take

    def _take(self, output: Any, request: Any = None) -> None:
        if isinstance(output, AbortReq):
            self._end(output.rid, "abort")
            return
        for rid, reason in zip(getattr(output, "rids", ()), getattr(output, "finished_reasons", ()), strict=False):
            if reason is not None:
                self._end(rid, reason["type"])

    def _end(self, rid: str, kind: str) -> None:
        self.count[rid] += 1
        self.kinds[rid] = kind
