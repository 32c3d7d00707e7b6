"""The policies that are compared: each arm is a server of its own, started with these arguments."""

from __future__ import annotations

from feather_sglang.cli.errors import UsageError

BASELINE = "fcfs"

ARMS = {
    BASELINE: ["--schedule-policy", "fcfs"],
    "lpm": ["--schedule-policy", "lpm"],
    "dfs-weight": ["--schedule-policy", "dfs-weight"],
    "feather": ["--schedule-policy", "feather"],
    "feather-static": ["--schedule-policy", "feather", "--feather-gate", "static"],
}


def chosen(text: str) -> list[str]:
    """The arms of a comma-separated list, in its order.

    :raises UsageError: if there is no such arm, or one comes twice.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ARMS:
            raise UsageError(f"--arms: there is no arm {name!r}; expected some of {', '.join(ARMS)}, e.g. fcfs,feather")
    if len(set(names)) < len(names):
        raise UsageError(f"--arms {text}: name each arm once")
    return names
