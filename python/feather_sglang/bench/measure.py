"""One arm: a fresh server, one workload, and what it counted."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm  # type: ignore[import-untyped]

from feather_sglang.bench import client, counters
from feather_sglang.bench.results import DECISIONS, Run
from feather_sglang.bench.reuse import cacheable_tokens
from feather_sglang.bench.workload import Workload
from feather_sglang.cli import server
from feather_sglang.cli.model import cache_folder

QUESTION = "What is the capital of France?"


class ArmFailed(Exception):
    """An arm gave no result; the message says why, and names the server's log."""


def measure(arm: str, args: Sequence[str], workload: Workload, env: Mapping[str, str]) -> Run:
    """Start a server with ``args``, ask it one question, send it the workload, and end it, whatever happens.

    The question warms up what is only set up at the first request; its prefix is then dropped from the cache.

    :param env: added to the server's environment.
    :raises ArmFailed: if the server does not start or a request fails.
    """
    log = cache_folder() / "bench" / f"{arm}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"{arm}: starting a server ...", flush=True)
    began = time.perf_counter()
    try:
        with running([*args, *counters.SERVER_ARGS, "--skip-server-warmup", "--sleep-on-idle"], log, env) as serving:
            start_seconds = time.perf_counter() - began
            print(f"{arm}: ready after {start_seconds:.0f} s. {QUESTION} {ask(serving.url, QUESTION)}", flush=True)
            _post(f"{serving.url}/flush_cache", None)
            decided, counted = _decisions(serving.url), counters.read(serving.url)
            cpu = cpu_seconds(serving.pid)
            with _progress(arm, workload) as told:
                replies, seconds = client.send(serving.url, workload, told)
            cpu = cpu_seconds(serving.pid) - cpu
            now = _decisions(serving.url)
            return Run(
                arm=arm,
                replies=replies,
                seconds=seconds,
                cpu_seconds=cpu,
                counters=counters.read(serving.url).since(counted),
                cacheable_tokens=cacheable_tokens(workload.prompts, state(serving.url)["page_size"]),
                decisions=None if now is None or decided is None else {name: now[name] - decided[name] for name in now},
                start_seconds=start_seconds,
            )
    except server.ServerFailed as failure:
        raise ArmFailed(f"{arm}: {failure}") from None
    except (client.RequestFailed, OSError) as failure:
        raise ArmFailed(f"{arm}: {failure}; the server's log is {log}") from None


def ask(url: str, question: str) -> str:
    """The answer to one chat question, in one line."""
    request = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 32}
    try:
        answer = _post(f"{url}/v1/chat/completions", request)
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise
        return f"(the model takes no chat: {error.code})"
    return " ".join(json.loads(answer)["choices"][0]["message"]["content"].split())


@contextmanager
def running(args: Sequence[str], log: Path, env: Mapping[str, str]) -> Iterator[server.Server]:
    """What ``feather serve args`` serves, until the context ends."""
    process = server.start(
        args, log=log, env=server.quick_environment() | dict(env), program=("-m", "feather_sglang.cli.launch")
    )
    try:
        process.wait_ready()
        yield process
    finally:
        process.kill()  # an orderly end takes ten seconds


@contextmanager
def _progress(arm: str, workload: Workload) -> Iterator[Callable[[int, bool], None]]:
    requests, first = len(workload.prompts), 0
    with tqdm(
        total=requests * workload.output_tokens,
        desc=f"  {arm}",
        unit="tok",
        mininterval=0.5,
        bar_format="{desc}: {percentage:3.0f}% |{bar:30}| {n_fmt}/{total_fmt} output tokens{postfix} [{elapsed}]",
    ) as bar:

        def told(new: int, is_first: bool) -> None:
            nonlocal first
            first += is_first
            bar.set_postfix_str(f"{requests - first} wait for their first", refresh=False)
            bar.update(new)

        yield told


def state(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/server_info", timeout=60) as response:
        state: dict[str, Any] = json.load(response)
        return state


def _decisions(url: str) -> dict[str, int] | None:
    states = [state.get("feather") for state in state(url)["internal_states"]]
    if any(state is None or "admitted" not in state for state in states):
        return None
    return {name: sum(state[name] for state in states) for name in DECISIONS}


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of all that it started."""
    process = psutil.Process(pid)
    return sum(sum(each.cpu_times()[:2]) for each in [process, *process.children(recursive=True)])


def _post(address: str, content: Any) -> bytes:
    body = b"" if content is None else json.dumps(content).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        answer: bytes = response.read()
        return answer
