"""Changes at run time: gate, order, ageing, barrier and bound, and the policy itself off and on, through SGLang's
``/set_internal_state``.

SGLang broadcasts the request, so all ranks change between the same two passes; what a bound in seconds comes to in
tokens, only the leader can tell, and its next tick does. Its values must be numbers: a number is
``feather_aging: 0.2``, and a choice is part of the key, ``feather_gate.static: 1``.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from feather_sglang.core.settings import Settings
from feather_sglang.sglang.options import FLAGS, POLICY, Flag, OptionError, check_max_wait, one_of, read, replaced

logger = logging.getLogger(__name__)

PREFIX = "feather_"

SWITCHED_OFF = "it was switched off; feather set policy=feather switches it on"
"""Why the policy does not work in a server in which it was."""

_NAMES = ("gate", "order", "aging", "barrier_min", "max_wait")
_SWITCH = Flag("policy", one_of(POLICY, "fcfs"), f"{{{POLICY},fcfs}}", POLICY, "The policy, off and on.")
CHANGEABLE: dict[str, Flag] = {flag.name: flag for flag in FLAGS if flag.name in _NAMES} | {"policy": _SWITCH}

_CHOICES = ("gate", "order", "policy")


def to_wire(texts: Mapping[str, str]) -> dict[str, float]:
    """Changes as the request carries them.

    :param texts: by option, as a person gives them.
    :raises OptionError: with one line, if one of them is not good.
    """
    values = _values(texts)
    return {
        (f"{PREFIX}{name}.{value}" if name in _CHOICES else f"{PREFIX}{name}"): 1 if name in _CHOICES else value
        for name, value in values.items()
    }


def of_wire(given: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The changes in a request, by option, and the rest of it, which is SGLang's."""
    ours: dict[str, str] = {}
    rest: dict[str, Any] = {}
    for key, value in given.items():
        name, dot, choice = key.removeprefix(PREFIX).partition(".")
        if not key.startswith(PREFIX):
            rest[key] = value
        else:
            ours[name] = choice if dot else _text(value)
    return ours, rest


class Changed(NamedTuple):
    """What a request asks for; None: as it is."""

    settings: Settings
    max_wait: float | None
    """The bound on waiting, in seconds."""
    policy: str | None
    """``feather`` or ``fcfs``."""


def changed(settings: Settings, texts: Mapping[str, str]) -> Changed:
    """The settings with changes.

    :raises OptionError: with one line, if one of them is not good.
    """
    values = _values(texts)
    max_wait, policy = values.pop("max_wait", None), values.pop("policy", None)
    return Changed(replaced(settings, values), max_wait, policy)


def set_internal_state(original: Callable[..., Any], scheduler: Any, recv_req: Any, *args: Any, **named: Any) -> Any:
    """AROUND ``Scheduler.set_internal_state``: all of a request is done, or nothing."""
    texts, rest = of_wire(recv_req.server_args)
    if not texts:
        return original(scheduler, recv_req, *args, **named)
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    adapter = scheduler.__dict__.get("feather")
    try:
        if adapter is None or adapter.fallen not in (None, SWITCHED_OFF):
            raise OptionError("the policy is not at work in this server; nothing of it can be changed.")
        settings, max_wait, policy = changed(adapter.settings, texts)
        if adapter.fallen is not None and policy != POLICY:
            raise OptionError("the policy is switched off; switch it on first: policy=feather.")
    except OptionError as error:
        logger.warning("feather: not changed: %s", error)
        return SetInternalStateReqOutput(updated=False)
    theirs = copy.copy(recv_req)  # the request itself goes on to the next pipeline stage
    theirs.server_args = rest
    answer = original(scheduler, theirs, *args, **named)
    if answer.updated:
        if policy is not None:
            adapter.switch(on=policy == POLICY)
        if settings != adapter.settings:
            adapter.reconfigure(settings)
        if max_wait is not None:
            scheduler.feather_ticks.bound_waits(max_wait)
        logger.info("feather: changed: %s", ", ".join(f"{name}={text}" for name, text in texts.items()))
    return answer


def _values(texts: Mapping[str, str]) -> dict[str, Any]:
    values = {}
    for name, text in texts.items():
        flag = CHANGEABLE.get(name)
        if flag is None:
            raise OptionError(
                f"{name} cannot be changed while the server runs; expected {', '.join(CHANGEABLE)}. Give one of these, "
                "or start the server again."
            )
        values[name] = read(flag, name, text)
    if "max_wait" in values:
        check_max_wait("max_wait", values["max_wait"])
    return values


def _text(value: float) -> str:
    return str(value).removesuffix(".0")
