"""Conversations of tau-bench: an agent with a policy, tools and a user; each answer of the agent is one request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from feather_sglang.bench.workloads import Request, Tokenizer, Workload
from feather_sglang.bench.workloads.recorded import Recorded, Wishes, ordered, workload
from feather_sglang.simulate.traces.lines import TraceError


def taubench(path: Path, tokenizer: Tokenizer, wishes: Wishes) -> Workload:
    """One conversation after the other, or in turn.

    Messages are rendered alike for every model (``role: content``, tool calls as JSON) and encoded one by one: a
    request's tokens are exactly those of the one before it in its conversation, and more.

    :raises TraceError: if the file is damaged.
    """
    try:
        conversations = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TraceError(f"{path}: this is not JSON ({error}); expected a list of conversations") from None
    if not isinstance(conversations, list) or not conversations:
        raise TraceError(f"{path} holds no conversations; expected a list of objects with `traj`")
    sessions = [
        _requests(f"{path}, conversation {number}", str(number), conversation, tokenizer, wishes)
        for number, conversation in enumerate(conversations, 1)
    ]
    turns = ordered(sessions, interleaved=wishes.interleaved)
    if not turns:
        raise TraceError(f"{path} holds no requests; expected conversations in which an assistant answers")
    name = f"{len(sessions)} tau-bench conversations, {'interleaved' if wishes.interleaved else 'one after the other'}"
    return workload(name, turns, wishes, timed=False)


def _requests(where: str, family: str, conversation: Any, tokenizer: Tokenizer, wishes: Wishes) -> list[Recorded]:
    turns = conversation.get("traj") if isinstance(conversation, dict) else None
    if not isinstance(turns, list) or not all(isinstance(turn, dict) and "role" in turn for turn in turns):
        raise TraceError(
            f"{where}: there are no messages; expected `traj`, a list of objects with `role` and `content`"
        )
    so_far: list[int] = []
    requests = []
    for number, turn in enumerate(turns, 1):
        tokens = tokenizer.encode(_rendered(turn))
        if turn["role"] == "assistant" and so_far:
            new = wishes.output_tokens or max(len(tokens), 1)
            requests.append(Recorded(f"{where}, message {number}", Request(list(so_far), new, family)))
        so_far += tokens
    return requests


def _rendered(turn: dict[str, Any]) -> str:
    calls = [call.get("function") for call in turn.get("tool_calls") or ()]
    parts = [turn["role"], turn.get("name"), turn.get("content"), json.dumps(calls) if calls else None]
    return ": ".join(part for part in parts if part) + "\n"
