"""What is compared: each arm is a server of its own, started with these arguments and environment."""

from __future__ import annotations

from typing import NamedTuple

from feather_sglang.cli.errors import UsageError
from feather_sglang.core.settings import GATES, ORDERS, Settings

BASELINE = "fcfs"


class Arm(NamedTuple):
    """Arguments, environment, and what it is for."""

    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()


def _policy(name: str, *more: str) -> Arm:
    return Arm(("--schedule-policy", name, *more))


UPSTREAM = (BASELINE, "lpm", "dfs-weight", "hrrn", "shortest-prefill-first", "routing-key")
"""SGLang's own. Every request carries its true family as routing key; only the last of these looks at it."""

_FEATHER = {
    "-".join(
        ["feather", *([order] if order != Settings().order else []), *([gate] if gate != "never" else [])]
    ): _policy("feather", "--feather-order", order, "--feather-gate", gate)
    for order in ORDERS
    for gate in GATES
}

_CASCADE, _ALONE = ("--attention-backend", "feather-cascade"), ("--feather-sharing", "off")
_NO_ROWS, _NO_BARRIER = ("--feather-row-order", "off"), ("--feather-barrier", "off")

_ABLATION = {
    "fcfs-alone": _policy(BASELINE, *_CASCADE, *_ALONE),
    "order": _policy("feather", *_CASCADE, *_NO_BARRIER, *_NO_ROWS, *_ALONE),
    "+barrier": _policy("feather", *_CASCADE, *_NO_ROWS, *_ALONE),
    "+rows": _policy("feather", *_CASCADE, *_ALONE),
    "+sharing": _policy("feather", *_CASCADE),
    "+gate": _policy("feather", *_CASCADE, "--feather-gate", "static"),
}
"""Each adds one thing to the one before: order, barrier, order of rows, sharing attention, gate."""

_CONTROL = {
    f"{name}-no-cache": Arm(("--schedule-policy", name), (("SGLANG_RADIX_FORCE_MISS", "1"),))
    for name in (BASELINE, "feather")
}
"""Nothing is ever found in the cache: what is left of a gain is due to the order alone."""

ARMS: dict[str, Arm] = {name: _policy(name) for name in UPSTREAM} | _FEATHER | _ABLATION | _CONTROL

GROUPS: dict[str, tuple[str, ...]] = {
    "policies": (*UPSTREAM, "feather"),
    "feather-all": tuple(_FEATHER),
    "ablation": tuple(_ABLATION),
    "control": (BASELINE, "feather", *_CONTROL),
    "all": tuple(ARMS),
}
"""Names for several arms."""


def chosen(text: str) -> dict[str, Arm]:
    """The arms of a comma-separated list, in its order; ``ARM@BACKEND`` is an arm on another attention backend.

    :raises UsageError: if there is no such arm, or one is named that is there already.
    """
    arms: dict[str, Arm] = {}
    for word in (word.strip() for word in text.split(",")):
        word, at, backend = word.partition("@")
        for name in GROUPS.get(word, (word,)):
            if name not in ARMS or (at and not backend):
                raise UsageError(
                    f"--arms: there is no arm {word + at!r}; expected some of {', '.join(ARMS)} or of the groups "
                    f"{', '.join(GROUPS)}, e.g. fcfs,feather, or with an attention backend: feather@torch_native"
                )
            if name + at + backend in arms and word in GROUPS:
                continue
            if name + at + backend in arms:
                raise UsageError(f"--arms {text}: name each arm once")
            arm = ARMS[name]
            arms[name + at + backend] = arm._replace(args=(*arm.args, "--attention-backend", backend)) if at else arm
    return arms


def baseline_of(name: str) -> str:
    """The arm that another is compared with: first come, first served, with the same attention and the same cache."""
    name, at, backend = name.partition("@")
    group = next((names for names in (tuple(_ABLATION), tuple(_CONTROL)) if name in names), (BASELINE,))
    return group[0] + at + backend


def name_of(policy: str, order: str | None = None, gate: str | None = None) -> str:
    """The name of the arm that a running server is."""
    if order is None or gate is None:
        return policy
    arm = _policy(policy, "--feather-order", order, "--feather-gate", gate)
    return next((name for name, other in _FEATHER.items() if other == arm), policy)
