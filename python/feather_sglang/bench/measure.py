"""One run: one workload on one server, and what was counted."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from feather_sglang.bench import client, counters
from feather_sglang.bench.kv import running_kv
from feather_sglang.bench.progress import progress
from feather_sglang.bench.results import DECISIONS, Run
from feather_sglang.bench.reuse import cacheable_tokens
from feather_sglang.bench.target import Target
from feather_sglang.bench.workloads import Workload
from feather_sglang.cli import server

QUESTION = "What is the capital of France?"


def measure(target: Target, workload: Workload, *, arm: str, round: int, tokenizer: str | None) -> Run:
    """Send a workload to a server; its cache is dropped first, if it may be.

    :param round: which of the repeats this is, from 0.
    :raises RequestFailed: if a request fails.
    :raises OSError: if the server does not answer.
    """
    if target.flushes:
        target.flush()
    info, counted = target.info(), counters.read(target)
    decided, policy, cpu = _decisions(info), _policy_seconds(info), target.cpu_seconds()
    with progress(arm, workload, target, counted) as ended:
        replies, seconds = client.send(target.url, workload, ended, tokenizer=tokenizer, api_key=target.api_key)
    spent = target.cpu_seconds()
    now = counters.read(target)
    info = target.info()
    decided_now, policy_now = _decisions(info), _policy_seconds(info)
    return Run(
        arm=arm,
        workload=workload.name,
        round=round,
        replies=replies,
        seconds=seconds,
        cpu_seconds=None if spent is None or cpu is None else spent - cpu,
        counters=None if now is None or counted is None else now.since(counted),
        cacheable_tokens=cacheable_tokens(workload.prompts, info["page_size"]),
        kv=running_kv(workload.prompts, replies),
        policy_seconds=None if policy is None or policy_now is None else policy_now - policy,
        decisions=None
        if decided is None or decided_now is None
        else {name: decided_now[name] - decided[name] for name in DECISIONS},
    )


def ask(target: Target, question: str = QUESTION) -> str:
    """The answer to one chat question, in one line; it also warms up what is only set up at the first request."""
    request = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 32}
    try:
        answer = target.post("/v1/chat/completions", request)
    except urllib.error.HTTPError as error:
        if error.code >= 500:
            raise
        return f"(the model takes no chat: {error.code})"
    return " ".join(json.loads(answer)["choices"][0]["message"]["content"].split())


@contextmanager
def running(args: Sequence[str], log: Path, env: Mapping[str, str]) -> Iterator[server.Server]:
    """What ``feather serve args`` serves, until the context ends."""
    log.parent.mkdir(parents=True, exist_ok=True)
    process = server.start(
        args, log=log, env=server.quick_environment() | dict(env), program=("-m", "feather_sglang.cli.launch")
    )
    try:
        client.load()  # while the server starts
        process.wait_ready()
        yield process
    finally:
        process.kill()  # an orderly end takes ten seconds


def _decisions(info: Mapping[str, Any]) -> dict[str, int] | None:
    states = [state.get("feather") for state in info["internal_states"]]
    if any(state is None or "admitted" not in state for state in states):
        return None
    return {name: sum(state[name] for state in states) for name in DECISIONS}


def _policy_seconds(info: Mapping[str, Any]) -> float | None:
    """Of the data-parallel rank that spent most in its policy: feather says it itself; SGLang's own are timed by the
    hooks of ``sglang.phases``."""
    spent = [
        (state.get("feather") or {}).get("policy_seconds", state.get("feather_order_seconds"))
        for state in info["internal_states"]
    ]
    return None if None in spent else max(spent)
