"""Whether this SGLang is one the plugin knows, and whether every hook is in place.

A scheduler that is hooked in part would order requests by half of the rules, so it is refused at its start
(or serves first come, first served, where ``--feather-on-mismatch fcfs`` says so).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any, NamedTuple

supported_versions: tuple[str, ...] = ("0.5.20", "0.5.21", "0.5.22", "0.5.23")

REQUEST = "sglang.srt.managers.schedule_batch.Req.__init__"
REQUEST_NEEDS = ("lora_id", "extra_key", "cache_salt", "positional_embed_overrides", "input_embeds")
_REGISTRY = "sglang.srt.managers.schedule_policy_registry"
_QUEUE = "sglang.srt.managers.waiting_queue"
_ROWS = "sglang.srt.managers.scheduler.Scheduler.get_num_allocatable_reqs"


class Hook(NamedTuple):
    """One hook, as SGLang's ``HookRegistry`` takes it."""

    target: str
    """Dotted path of the function that is hooked."""
    kind: str
    """``before``, ``after`` or ``around``."""
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()
    """Parameters that the target must have."""


def installed_version() -> str:
    """The version of the installed SGLang; ``none`` without one."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def check_version(version: str | None = None) -> list[str]:
    """What is wrong with the version of SGLang, in one clause each.

    :param version: another than the installed one.
    """
    version = version or installed_version()
    if version in supported_versions:
        return []
    known = f"{supported_versions[0]} to {supported_versions[-1]}"
    return [f"SGLang {version} is not one of the versions it was tested with ({known})"]


def check_hooks(live: bool = True) -> list[str]:
    """What is wrong with the scheduler's hooks in this process, in one clause each.

    It imports SGLang's scheduler. With ``live`` every hook must be in the path of its target's calls; without, it is
    enough that the targets exist and have the parameters that the hooks rely on.
    """
    from feather_sglang.sglang.plugin import scheduler_hooks

    problems = []
    for hook in scheduler_hooks():
        try:
            target = _resolve(hook.target)
        except (AttributeError, ImportError):
            problems.append(f"{hook.target} does not exist")
            continue
        if lacking := [name for name in hook.needs if name not in _parameters(target)]:
            problems.append(f"{hook.target} has no parameter {', '.join(lacking)}")
        elif live and not is_in_place(hook):
            problems.append(f"the hook on {hook.target} is not in place")
    try:
        lacking = [name for name in REQUEST_NEEDS if name not in _parameters(_resolve(REQUEST))]
    except (AttributeError, ImportError):
        lacking = list(REQUEST_NEEDS)
    if lacking:
        problems.append(f"a request has no {', '.join(lacking)}")
    return list(dict.fromkeys(problems))


def check_route(live: bool = True) -> list[str]:
    """What is wrong with the way by which the policy is called, in one clause each: patches, or else hooks."""
    return check_patches() or ([] if is_patched() else check_hooks(live))


def is_patched() -> bool:
    """Whether this SGLang calls policies itself (``patches/``): then its scheduler is not hooked."""
    return importlib.util.find_spec(_REGISTRY) is not None


def check_patches() -> list[str]:
    """What is wrong with a patched SGLang, in one clause each: a part of the patches is no base to stand on.

    It imports nothing of the scheduler, so that a launcher can ask, too.
    """
    queue = importlib.util.find_spec(_QUEUE) is not None
    lacking: list[str] = []
    if is_patched():
        from feather_sglang.sglang.native import FeatherPolicy

        base = vars(pkgutil.resolve_name(f"{_REGISTRY}:ExternalSchedulePolicy"))
        lacking += [name for name in vars(FeatherPolicy) if not name.startswith("_") and name not in (*base, "of")]
        lacking += [] if queue else ["a queue that is observed"]
    elif queue:
        lacking.append("registry of policies")
    if not lacking:
        return []
    return [f"it has only a part of the patches (`feather patch check`): no {', '.join(lacking)}"]


def counts_held_rows() -> bool:
    """Whether this SGLang's count of free rows wants to be told of rows that admitted requests have (0.5.23)."""
    return "num_held_rows" in _parameters(_resolve(_ROWS))


def is_in_place(hook: Hook) -> bool:
    """Whether a call of the target comes to the hook: SGLang's wrappers keep it in their closure, and what they wrap in
    ``__wrapped__``."""
    function = _resolve(hook.target)
    while function is not None:
        for cell in getattr(function, "__closure__", None) or ():
            if cell.cell_contents is hook.function:
                return True
        function = getattr(function, "__wrapped__", None)
    return False


def _resolve(target: str) -> Any:
    owner, name = target.rsplit(".", 1)
    function = getattr(pkgutil.resolve_name(owner), name)
    return getattr(function, "__func__", function)


def _parameters(function: Any) -> list[str]:
    return list(inspect.signature(inspect.unwrap(function)).parameters)
