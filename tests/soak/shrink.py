"""A failing script, made as short as some time allows."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.harness import pool
from tests.soak.episode import Episode
from tests.soak.script import Action, Script


def failure_of(script: Script, fresh: bool = False) -> str | None:
    """What a script fails with, in short; None: it passes.

    :param fresh: on a Scheduler in which nothing ran.
    """
    if fresh:
        pool.discard()
    try:
        Episode(script).run()
    except Exception as error:
        pool.discard()  # whatever state it is in
        return f"{type(error).__name__}: {error}"
    return None


def shrink(script: Script, seconds: float, fails: Callable[[Script], bool] | None = None) -> Script:
    """The shortest script that was found to fail still: parts are left out, halves first, then ever smaller ones.

    :param fails: whether one fails; None: it does if it raises.
    """
    end = time.monotonic() + seconds
    fails = fails or (lambda candidate: failure_of(candidate) is not None)
    actions: list[Action] = list(script.actions)
    size = len(actions)
    while size > 1 and time.monotonic() < end:
        size = (size + 1) // 2
        begin = 0
        while begin < len(actions) and time.monotonic() < end:
            left = actions[:begin] + actions[begin + size :]
            if left and fails(script.with_actions(left)):
                actions = left
            else:
                begin += size
    return script.with_actions(actions)
