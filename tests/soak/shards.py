"""The soak in shards: each is a line in a file when it is done, and is not run again."""

from __future__ import annotations

import re
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from feather_sglang.bench.machine import machine
from tests.harness import pool
from tests.soak.draw import draw
from tests.soak.episode import Episode

EPISODE = 150
"""Requests an episode."""
SHARD = 2_500
"""Requests a shard, at least: some minutes."""
LINE = re.compile(r"seed (\d+) shard (\d+): (\d+) requests, (\d+) violations")


def number_of(seed: int, shard: int, episode: int) -> int:
    """The number that an episode is drawn from and replayed by."""
    return seed * 1_000_000 + shard * 1_000 + episode


def run(seed: int, shard: int, requests: int, failed: Callable[[int], None]) -> str:
    """A shard; returns its line.

    :param failed: called with the number of each episode that fails.
    """
    counts: Counter[str] = Counter()
    began, violations, episode = time.monotonic(), 0, 0
    while counts["sent"] < requests:
        number = number_of(seed, shard, episode)
        episode += 1
        size = min(EPISODE, requests - counts["sent"])
        pool.discard()
        try:
            counts += Episode(draw(number, size)).run()
        except Exception:
            violations += 1
            counts["sent"] += size
            traceback.print_exc()
            pool.discard()
            failed(number)
    seconds = time.monotonic() - began
    happened = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if name != "sent")
    return (
        f"seed {seed} shard {shard}: {counts['sent']} requests, {violations} violations in {seconds:.0f} s "
        f"({_commit()}; {machine()['cpu']}): {happened}"
    )


def done(results: Path, seed: int) -> set[int]:
    """Shards of a seed that a file has."""
    lines = results.read_text().splitlines() if results.exists() else []
    found = [match for line in lines if (match := LINE.match(line))]
    return {int(match[2]) for match in found if int(match[1]) == seed}


def total(results: Path) -> str:
    """What the lines of a file come to."""
    found = [LINE.match(line) for line in results.read_text().splitlines()]
    sums = [sum(int(match[group]) for match in found if match) for group in (3, 4)]
    return f"{sums[0]} requests in {len(found)} shards, {sums[1]} violations ({results})"


def _commit() -> str:
    try:
        found = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
    return found.stdout.strip()
