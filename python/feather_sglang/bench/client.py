"""The client: sends a workload to SGLang's ``/generate``, streaming, and takes the times.

Times are defined as in ``sglang.bench_serving``, whose request function says nothing before a request has ended; here
every token moves the progress bar.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import aiohttp

from feather_sglang.bench.workload import Workload


class RequestFailed(Exception):
    """The server refused a request or broke off."""


class Reply(NamedTuple):
    """What became of one request."""

    ttft: float
    """Seconds from sending it to its first token."""
    latency: float
    """Seconds from sending it to its last token."""
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that the server took from its cache."""

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first; 0 if there is only one."""
        return (self.latency - self.ttft) / max(self.output_tokens - 1, 1)


def send(url: str, workload: Workload, told: Callable[[int, bool], Any]) -> tuple[list[Reply], float]:
    """Send all requests at once; the replies in their order, and the seconds until the last had ended.

    :param told: called with the number of new tokens, and whether the first of a request is among them.
    :raises RequestFailed: if any request fails.
    """
    return asyncio.run(_send(url, workload, told))


async def _send(url: str, workload: Workload, told: Callable[[int, bool], Any]) -> tuple[list[Reply], float]:
    async with aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=2**20,  # a line holds all text so far
    ) as session:
        began = time.perf_counter()
        try:
            replies = await asyncio.gather(
                *(_generate(session, prompt, workload.output_tokens, told) for prompt in workload.prompts)
            )
        except aiohttp.ClientError as error:
            raise RequestFailed(f"the connection broke off ({error})") from None
        return replies, time.perf_counter() - began


async def _generate(
    session: aiohttp.ClientSession, prompt: Sequence[int], output_tokens: int, told: Callable[[int, bool], Any]
) -> Reply:
    request = {
        "input_ids": prompt,
        "stream": True,
        "sampling_params": {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True},
    }
    began = time.perf_counter()
    ttft = latency = 0.0
    meta: dict[str, Any] = {"completion_tokens": 0}
    async with session.post("/generate", json=request) as response:
        if response.status != 200:
            raise RequestFailed(f"the server answered {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line.removeprefix(b"data: "))
            if "meta_info" not in event:
                raise RequestFailed(f"the server answered {line.decode()[:300]}")
            latency = time.perf_counter() - began
            before, meta = meta["completion_tokens"], event["meta_info"]
            if new := meta["completion_tokens"] - before:
                ttft = ttft or latency
                told(new, before == 0)
    if meta["completion_tokens"] != output_tokens:
        raise RequestFailed(f"a request ended after {meta['completion_tokens']} of {output_tokens} tokens")
    return Reply(ttft, latency, meta["completion_tokens"], meta["prompt_tokens"], meta["cached_tokens"])
