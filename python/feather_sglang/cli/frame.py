"""One frame of ``feather top``: two looks at a server become lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_BAR = 24
_INDENT, _MOST = 9, 6
"""Columns of a label, and lines after one."""
_NAMESPACES = 3
"""Those that waited longest."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


class Snapshot(NamedTuple):
    """One look at a server."""

    at: float
    """Seconds, on any clock that goes on."""
    about: Mapping[str, str]
    """``url``, ``model``, ``sglang``."""
    states: list[dict[str, Any]]
    """``internal_states[i]["feather"]`` of each data-parallel rank."""


def frame(
    before: Snapshot | None, now: Snapshot, *, width: int, height: int, colour: bool, lost: str | None = None
) -> list[str]:
    """At most ``height`` lines of at most ``width`` columns.

    :param before: the look before, for rates; None: sums since the start.
    :param lost: why there is no newer look, if the server does not answer.
    """
    lines = []
    if lost is not None:
        lines += [_styled("red", line) for line in textwrap.wrap(f"as it was when it last answered: {lost}", width)]
    about = now.about
    title = _styled("bold", "feather top") + "   "
    lines += _wrapped(title, [about["url"], about["model"], f"SGLang {about['sglang']}"], width)
    room = (height - len(lines)) // max(len(now.states), 1)
    for i, state in enumerate(now.states):
        old = before.states[i] if before is not None and len(before.states) == len(now.states) else None
        if old is not None and old.get("passes", 0) > state.get("passes", 0):
            old = None  # another server, or the policy's start
        many = len(now.states) > 1
        if many:
            lines += ["", _styled("bold", f"data-parallel rank {i}")]
        lines += _rank(old, state, now.at - before.at if before is not None else 0.0, width, room - 2 * many)
    return [_cut(line, width) if colour else _ESCAPES.sub("", line)[:width] for line in lines[:height]]


def _rank(
    old: Mapping[str, Any] | None, new: Mapping[str, Any], seconds: float, width: int, room: int
) -> Iterator[str]:
    if new["policy"] != "feather":
        yield _styled("red", f"first come, first served: {new.get('reason')}")
        return
    bound = f"{new['max_wait_tokens']:,} tokens"
    settings = [
        f"order {new['order']}",
        f"gate {new['gate']}",
        f"chunk {new['chunk_size']}",
        f"barrier {new['barrier_min']:,}",
        f"bound {bound}" if new["max_wait"] is None else f"bound {new['max_wait']:g} s, now {bound}",
        f"version {new['version']}",
    ]
    lines = [*_wrapped("", settings, width), ""]
    if "total_kv" not in new:
        yield from [*lines, _styled("red", "the core is lost; the next pass builds another")]
        return
    waits = new["waits"]
    for label, parts in (
        ("batch", _batch(new)),
        ("queue", _queue(new)),
        ("passes", _passes(old, new, seconds)),
        ("waits", _waits(waits)),
        ("gate", _gate(new)),
        ("trouble", [_styled("red", f"{name} {n}") for name, n in new["fallbacks"].items()]),
    ):
        if parts:
            lines += _wrapped(_label(label), parts, width)
    yield from [*lines, ""]
    yield from _families(new, max(room - len(lines) - 3, 3))


def _batch(new: Mapping[str, Any]) -> list[str]:
    shared = new["total_kv"] / new["distinct_kv"] if new["distinct_kv"] else 1.0
    sharing = _styled("green" if shared > 1.05 else "dim", f"read {shared:.2f} times")
    return [
        _count(new["running"], "row", "rows"),
        _count(new["families_running"], "family", "families"),
        f"tip {new['tip_chunks'] * new['chunk_size']:,} tokens",
        f"KV {new['distinct_kv']:,} tokens, {sharing}",
    ]


def _queue(new: Mapping[str, Any]) -> list[str]:
    return [
        f"{new['waiting']:,} waiting",
        _styled("yellow" if new["held"] else "dim", f"{new['held']:,} held back"),
        _count(new["families_waiting"], "family", "families"),
        f"{new['waiting_alone']:,} alone",
        f"oldest {new['oldest_tokens']:,} of {new['max_wait_tokens']:,} tokens",
    ]


def _passes(old: Mapping[str, Any] | None, new: Mapping[str, Any], seconds: float) -> list[str]:
    def grown(name: str) -> float:
        return float(new[name] - (old.get(name, 0) if old is not None else 0))

    cached = 100 * grown("reused_tokens") / grown("prompt_tokens") if grown("prompt_tokens") else None
    share = _styled("green", f"cached {cached:.0f}%") if cached else "cached " + ("-" if cached is None else "0%")
    policy = f"{1e6 * grown('policy_seconds') / grown('passes'):.0f}" if grown("passes") else "-"
    counts = (("admitted", "admitted"), ("stops", "stops"), ("barrier_waits", "barrier waits"))
    if old is None or seconds <= 0:
        rates = [f"{new[name]:,} {what}" for name, what in counts]
        when = "since the start"
    else:
        rates = [f"{grown(name) / seconds:,.1f} {what}/s" for name, what in counts]
        when = f"in {seconds:.1f} s"
    return [*rates, share, f"{policy} µs a pass", _styled("dim", when)]


def _waits(waits: Mapping[str, Any]) -> list[str]:
    parts = [
        f"mean {_seconds(waits['mean_seconds'])}",
        f"longest {_seconds(waits['longest_seconds'])} in the last minute",
    ]
    namespaces = sorted(waits["namespaces"].items(), key=lambda item: item[1]["longest_seconds"], reverse=True)
    if len(namespaces) > 1:
        parts += [
            _styled("dim", f"{name} {_seconds(group['mean_seconds'])}/{_seconds(group['longest_seconds'])}")
            for name, group in namespaces[:_NAMESPACES]
        ]
        parts += ["..."] * (len(namespaces) > _NAMESPACES)
    return parts


def _gate(new: Mapping[str, Any]) -> list[str]:
    asked = f"asked {new['gate_asked']:,} times, stopped {new['stops']:,}" if new["gate_asked"] else "never asked"
    return [new["gate"], asked, *(_learned(new["gate_state"]) or [_styled("dim", "learns nothing")])]


def _families(new: Mapping[str, Any], most: int) -> Iterator[str]:
    families = new["families"][:most]
    if not families:
        yield _styled("dim", "no two requests share a prefix now")
        return
    largest = max(f["waiting"] + f["running"] for f in families)
    yield _styled("bold", f"{'families':<{_BAR}}  {'running':>7}  {'waiting':>7}  {'in common':>12}  {'oldest':>8}")
    for family in families:
        bar = _bar(family["running"], family["waiting"], largest)
        oldest = family["oldest_seconds"]
        yield (
            f"{bar}  {family['running']:>7}  {family['waiting']:>7}  {family['tokens']:>5,} tokens  "
            f"{'-' if oldest is None else _seconds(oldest):>8}"
        )
    others = new["families_waiting"] + new["families_running"]
    if len(new["families"]) > len(families) or others > 2 * len(new["families"]):
        yield _styled("dim", "... and smaller ones")


def _bar(running: int, waiting: int, largest: int) -> str:
    """Running rows in one colour and, after them, waiting requests in another, to one scale."""
    solid = running * _BAR * 8 // largest // 8
    both = (running + waiting) * _BAR * 8 // largest
    rest = "█" * (both // 8 - solid) + (_EIGHTHS[both % 8].strip() if both // 8 < _BAR else "")
    return _styled("green", "█" * solid) + _styled("cyan", rest) + " " * (_BAR - solid - len(rest))


def _learned(values: Mapping[str, Any]) -> list[str]:
    """Words first, then figures, then groups of figures under their name."""
    words = [f"{name} {value}" for name, value in values.items() if isinstance(value, str)]
    figures = [f"{name} {_number(value)}" for name, value in values.items() if isinstance(value, int | float)]
    groups = [
        ("" if i else f"{name}: ") + part
        for name, group in values.items()
        if isinstance(group, Mapping)
        for i, part in enumerate(_learned(group))
    ]
    return words + figures + groups


def _wrapped(start: str, parts: Iterable[str], width: int) -> list[str]:
    """``start`` and the parts, on as many lines as they need up to ``_MOST``; those that follow are indented."""
    lines, begun = [start], False
    for part in parts:
        if begun and len(_shown(lines[-1])) + 3 + len(_shown(part)) > width:
            lines.append(" " * _INDENT)
            begun = False
        lines[-1] += "   " * begun + part
        begun = True
    if len(lines) > _MOST:
        lines[_MOST - 1 :] = [_cut(lines[_MOST - 1], width - 4) + _styled("dim", " ...")]
    return lines


def _shown(text: str) -> str:
    return _ESCAPES.sub("", text)


def _label(name: str) -> str:
    return _styled("bold", f"{name:<{_INDENT}}")


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}"


def _styled(style: str, text: str) -> str:
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text else ""


def _cut(line: str, width: int) -> str:
    """The first ``width`` columns of a line, its styles ended."""
    shown, at, parts = 0, 0, []
    for escape in _ESCAPES.finditer(line):
        text = line[at : escape.start()][: width - shown]
        parts += [text, escape.group()]
        shown, at = shown + len(text), escape.end()
    return "".join([*parts, line[at:][: width - shown]])
