"""The client: ``sglang.bench_serving`` (``sglang.benchmark.serving``), in this process, with requests of ours.

Its command line is called as anybody would call it; a data set of ours stands in for its ``custom`` one, which would
shuffle the prompts and encode them again. Times are those of its request function, which is wrapped for two things that
it has not: arrivals at given times (it keeps them for Mooncake's own format only), and word of each request as it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
import time
import urllib.request
import uuid
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from feather_sglang.bench.workloads import Workload


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
    sent: float = 0.0
    """Seconds since the first request of the run was sent."""
    gaps: tuple[float, ...] = ()
    """Seconds from each token to the next, as far as they were seen one by one."""

    @property
    def tpot(self) -> float:
        """Seconds per output token after the first; 0 if there is only one."""
        return (self.latency - self.ttft) / max(self.output_tokens - 1, 1)


def load() -> Any:
    """SGLang's client; importing it takes some ten seconds of CPU time, once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kernels that this machine has not
        from sglang.benchmark import serving
    return serving


def send(
    url: str,
    workload: Workload,
    ended: Callable[[Reply], Any] = lambda reply: None,
    *,
    tokenizer: str | None = None,
    api_key: str | None = None,
) -> tuple[list[Reply], float]:
    """Send a workload; the replies in its order, and the seconds from the first request sent to the last token.

    :param ended: is told each reply as it is there.
    :param tokenizer: folder or id; None: as the server names it.
    :raises RequestFailed: if any request fails.
    """
    serving, backend = load(), "sglang"
    tokenizer = tokenizer or _tokenizer_of(url, api_key)
    run = _Run(workload, serving.ASYNC_REQUEST_FUNCS[backend], ended)
    argv = ["bench_serving", "--backend", backend, "--base-url", url, "--model", tokenizer, "--tokenizer", tokenizer]
    argv += ["--dataset-name", "custom", "--num-prompts", str(len(workload.requests)), "--cache-report"]
    argv += ["--warmup-requests", "0", "--ready-check-timeout-sec", "0", "--disable-tqdm", "--output-file", os.devnull]
    if workload.concurrency is not None:
        argv += ["--max-concurrency", str(workload.concurrency)]
    said = io.StringIO()
    try:
        with _replaced(serving, backend, run, argv, api_key), contextlib.redirect_stdout(said):
            serving.cli_main()
    except RequestFailed:
        raise
    except SystemExit:
        raise RequestFailed(f"sglang.bench_serving ended: {' '.join(said.getvalue().splitlines()[-2:])}") from None
    except OSError as error:  # of requests or aiohttp
        raise RequestFailed(f"the connection broke off ({error})") from None
    replies = [run.replies[number] for number in range(len(workload.requests))]
    return replies, max(reply.sent + reply.latency for reply in replies)


class _Run:
    """One run: what it sends, and what came back so far.

    :param original: SGLang's function for one request.
    """

    def __init__(self, workload: Workload, original: Callable[..., Any], ended: Callable[[Reply], Any]) -> None:
        self.replies: dict[int, Reply] = {}
        self._workload = workload
        self._original = original
        self._ended = ended
        self._began: float | None = None
        self._name = uuid.uuid4().hex
        """Request ids begin with it: two seconds after a stream has ended, SGLang aborts who has its id by then. The
        number is padded, because an abort takes every id that begins alike."""

    def load(self, tokenizer: Any, model_id: Any = None) -> list[Any]:
        """The rows, as a data set of ``bench_serving`` gives them."""
        from sglang.benchmark.datasets import DatasetRow

        return [
            DatasetRow(
                prompt=list(request.prompt),
                prompt_len=len(request.prompt),
                output_len=request.output_tokens,
                extra_request_body={
                    "rid": f"{self._name}-{number:08d}",
                    # The header that SGLang's client would send is read by the OpenAI endpoints only.
                    "routing_key": request.family or None,
                    # Special tokens are text here: a first token without any would not be seen.
                    "sampling_params": {
                        "temperature": 0,
                        "max_new_tokens": request.output_tokens,
                        "ignore_eos": True,
                        "skip_special_tokens": False,
                    },
                },
            )
            for number, request in enumerate(self._workload.requests)
        ]

    async def request(self, request_func_input: Any, pbar: Any = None) -> Any:
        """In place of SGLang's function for one request."""
        if self._began is None:
            self._began = time.perf_counter()
        number = int(request_func_input.extra_request_body["rid"].removeprefix(f"{self._name}-"))
        request = self._workload.requests[number]
        if request.arrival > (passed := time.perf_counter() - self._began):
            await asyncio.sleep(request.arrival - passed)
        sent = time.perf_counter() - self._began
        output = await self._original(request_func_input=request_func_input, pbar=pbar)
        if not output.success:
            reason = (output.error.strip().splitlines() or ["no reason given"])[-1]
            raise RequestFailed(f"a request failed: {reason[:300]}")
        if output.output_len != request.output_tokens:
            raise RequestFailed(
                f"a request of {len(request.prompt):,} tokens ended after {output.output_len} of "
                f"{request.output_tokens} new ones: is it longer than the server takes?"
            )
        reply = Reply(
            ttft=output.ttft or output.latency,  # no token of it was text
            latency=output.latency,
            output_tokens=output.output_len,
            prompt_tokens=len(request.prompt),
            cached_tokens=output.cached_tokens,
            sent=sent,
            gaps=tuple(output.itl),
        )
        self.replies[number] = reply
        self._ended(reply)
        return output


@contextlib.contextmanager
def _replaced(serving: Any, backend: str, run: _Run, argv: list[str], api_key: str | None) -> Iterator[None]:
    """SGLang's client with our data set, our word of each request, and this command line."""
    from sglang.benchmark.datasets import DATASET_MAPPING

    class Dataset:
        @staticmethod
        def from_args(args: Any) -> _Run:
            return run

    kept = sys.argv, DATASET_MAPPING["custom"], serving.ASYNC_REQUEST_FUNCS[backend], dict(os.environ)
    sys.argv, DATASET_MAPPING["custom"], serving.ASYNC_REQUEST_FUNCS[backend] = argv, Dataset, run.request
    if api_key:
        os.environ["OPENAI_API_KEY"] = api_key
    try:
        yield
    finally:
        sys.argv, DATASET_MAPPING["custom"], serving.ASYNC_REQUEST_FUNCS[backend], environment = kept
        os.environ.clear()
        os.environ.update(environment)


def _tokenizer_of(url: str, api_key: str | None) -> str:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/model_info", headers=headers), timeout=60) as answer:
        info = json.load(answer)
    return str(info.get("tokenizer_path") or info["model_path"])
