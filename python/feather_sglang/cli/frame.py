"""One frame of ``feather top``: two looks at a server become lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_BAR = 24
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


def frame(before: Snapshot | None, now: Snapshot, *, width: int, height: int, colour: bool) -> list[str]:
    """At most ``height`` lines of at most ``width`` columns.

    :param before: the look before, for rates; None: sums since the start.
    """
    lines = [_styled("bold", "feather top") + "   " + "   ".join((now.about["url"], now.about["model"], _sglang(now)))]
    for i, state in enumerate(now.states):
        old = before.states[i] if before is not None and len(before.states) == len(now.states) else None
        if len(now.states) > 1:
            lines += ["", _styled("bold", f"data-parallel rank {i}")]
        lines += _rank(old, state, now.at - before.at if before is not None else 0.0, height)
    return [_cut(line, width) if colour else _ESCAPES.sub("", line)[:width] for line in lines[:height]]


def _sglang(now: Snapshot) -> str:
    return f"SGLang {now.about['sglang']}"


def _rank(old: Mapping[str, Any] | None, new: Mapping[str, Any], seconds: float, height: int) -> Iterator[str]:
    if new["policy"] != "feather":
        yield _styled("red", f"first come, first served: {new.get('reason')}")
        return
    yield (
        f"order {new['order']}   gate {new['gate']}   chunk {new['chunk_size']}   barrier {new['barrier_min']:,}   "
        f"bound {new['max_wait'] or 0:g} s, now {new['max_wait_tokens']:,} tokens   version {new['version']}"
    )
    yield ""
    if "total_kv" not in new:
        yield _styled("red", "the core is lost; the next pass builds another")
        return
    yield from _now(new)
    yield _passes(old, new, seconds)
    waits = new["waits"]
    spaces = "  ".join(
        f"{name} {_seconds(group['mean_seconds'])}/{_seconds(group['longest_seconds'])}"
        for name, group in waits["namespaces"].items()
    )
    yield (
        _label("waits") + f"mean {_seconds(waits['mean_seconds'])}   longest {_seconds(waits['longest_seconds'])} "
        f"in the last minute   {_styled('dim', f'by namespace: {spaces}' if spaces else '')}"
    )
    yield from _gate(new)
    if new["fallbacks"]:
        yield _label("trouble") + _styled("red", "  ".join(f"{name} {n}" for name, n in new["fallbacks"].items()))
    yield ""
    yield from _families(new, max(height - 12, 3))


def _now(new: Mapping[str, Any]) -> Iterator[str]:
    shared = new["total_kv"] / new["distinct_kv"] if new["distinct_kv"] else 1.0
    sharing = _styled("green" if shared > 1.05 else "dim", f"read {shared:.2f} times")
    yield (
        _label("batch")
        + f"{new['running']} rows   {_count(new['families_running'], 'family', 'families')}   tip "
        + f"{new['tip_chunks'] * new['chunk_size']:,} tokens   KV {new['distinct_kv']:,} tokens, {sharing}"
    )
    held = _styled("yellow" if new["held"] else "dim", f"{new['held']} held back")
    yield (
        _label("queue")
        + f"{new['waiting']} waiting   {held}   {_count(new['families_waiting'], 'family', 'families')}   "
        + f"{new['waiting_alone']} alone   oldest {new['oldest_tokens']:,} of {new['max_wait_tokens']:,} tokens"
    )


def _passes(old: Mapping[str, Any] | None, new: Mapping[str, Any], seconds: float) -> str:
    def grown(name: str) -> float:
        return float(new[name] - (old.get(name, 0) if old is not None else 0))

    cached = 100 * grown("reused_tokens") / grown("prompt_tokens") if grown("prompt_tokens") else None
    share = _styled("green", f"cached {cached:.0f}%") if cached else "cached " + ("-" if cached is None else "0%")
    policy = 1e6 * grown("policy_seconds") / grown("passes") if grown("passes") else 0.0
    if old is None or seconds <= 0:
        rates = f"{new['admitted']:,} admitted   {new['stops']:,} stops   {new['barrier_waits']:,} barrier waits"
        when = "since the start"
    else:
        rates = "   ".join(
            f"{grown(name) / seconds:,.1f} {what}/s"
            for name, what in (("admitted", "admitted"), ("stops", "stops"), ("barrier_waits", "barrier waits"))
        )
        when = f"in {seconds:.1f} s"
    return _label("passes") + f"{rates}   {share}   {policy:.0f} µs a pass   {_styled('dim', when)}"


def _gate(new: Mapping[str, Any]) -> Iterator[str]:
    learned = new["gate_state"]
    asked = f"asked {new['gate_asked']:,} times, stopped {new['stops']:,}" if new["gate_asked"] else "never asked"
    figures = "   ".join(f"{name} {_number(value)}" for name, value in _flat(learned))
    yield _label("gate") + f"{new['gate']}   {asked}   {figures or _styled('dim', 'learns nothing')}"


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


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value


def _label(name: str) -> str:
    return _styled("bold", f"{name:<9}")


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


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
