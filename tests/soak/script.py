"""What happens in an episode: settings, prompts, and one action after the other. All of it is plain values.

A script is drawn from a number, or read from a file, so an episode is replayed by its number and a failing one can be
cut down (``shrink``) and kept.
"""

from __future__ import annotations

import pprint
import random
from ast import literal_eval
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from feather_sglang.bench.tiny_llama import VOCABULARY


class Prompt(NamedTuple):
    """The first ``kept`` tokens of another prompt, and ``own`` tokens of its own."""

    base: int | None
    kept: int
    own: int


class Send(NamedTuple):
    """Request ``number``, with prompt ``number``."""

    number: int
    new: int
    ignore_eos: bool
    said: object
    """What its client takes its output's length for; None: it does not say."""
    fields: dict[str, Any]


class Abort(NamedTuple):
    """Of those that are in ``state`` (``states.STATES``) the one at ``pick``, modulo their number."""

    state: str
    pick: int


class AbortAll(NamedTuple):
    pass


class Timeout(NamedTuple):
    """SGLang's timeout of the ``oldest`` requests that are ``waiting`` or running."""

    waiting: bool
    oldest: int


class Pause(NamedTuple):
    mode: str


class Resume(NamedTuple):
    pass


class Flush(NamedTuple):
    """Drops the cache, if SGLang does: it refuses while something runs."""


class ForceRetraction(NamedTuple):
    """SGLang's own switch: from here on, or no more."""

    on: bool


class QueueLimit(NamedTuple):
    requests: int | None


class Change(NamedTuple):
    """As ``feather set``; refused while the policy is switched off, but for what switches it on."""

    values: dict[str, str]


class Passes(NamedTuple):
    count: int


Action = Send | Abort | AbortAll | Timeout | Pause | Resume | Flush | ForceRetraction | QueueLimit | Change | Passes
ACTIONS = {
    cls.__name__: cls
    for cls in (Send, Abort, AbortAll, Timeout, Pause, Resume, Flush, ForceRetraction, QueueLimit, Change, Passes)
}


@dataclass
class Script:
    """``engine``: SGLang's arguments, and ``overlap``; ``core``: ``Settings``; ``parking``: of ``attach``, or None.

    ``at_random`` in ``parking``: who sits out, and is parked, is drawn (``tests.harness.parking``).
    """

    seed: int
    engine: dict[str, Any]
    core: dict[str, Any]
    parking: dict[str, Any] | None
    adapters: int
    """LoRA adapters that are loaded."""
    prompts: dict[int, Prompt] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)

    def tokens(self, number: int) -> list[int]:
        """Those of a prompt."""
        base, kept, own = self.prompts[number]
        draw = random.Random(f"{self.seed} {number}")
        start = [] if base is None else self.tokens(base)[:kept]
        return start + draw.choices(range(2, VOCABULARY), k=own)

    def with_actions(self, actions: Sequence[Action]) -> Script:
        """The same with these actions, and the prompts that they need."""
        needed: dict[int, Prompt] = {}
        for action in actions:
            number = action.number if isinstance(action, Send) else None
            while number is not None and number not in needed:
                needed[number] = self.prompts[number]
                number = needed[number].base
        parts = (self.seed, self.engine, self.core, self.parking, self.adapters)
        return Script(*parts, dict(sorted(needed.items())), list(actions))

    def write(self, path: Path) -> None:
        """As a Python literal, an action a line."""
        plain = {
            **{name: getattr(self, name) for name in ("seed", "engine", "core", "parking", "adapters")},
            "prompts": {number: tuple(prompt) for number, prompt in self.prompts.items()},
            "actions": [(type(action).__name__, *action) for action in self.actions],
        }
        path.write_text(pprint.pformat(plain, width=110, sort_dicts=False) + "\n")


def read(path: Path) -> Script:
    """What ``Script.write`` wrote."""
    plain = literal_eval(path.read_text())
    plain["prompts"] = {number: Prompt(*prompt) for number, prompt in plain["prompts"].items()}
    plain["actions"] = [ACTIONS[name](*values) for name, *values in plain["actions"]]
    return Script(**plain)
