"""``python -m tests.soak REQUESTS SEED``: episodes until so many requests were sent; one line at the end."""

from __future__ import annotations

import logging
import sys
import traceback
from collections import Counter

from tests.harness import pool
from tests.soak.chaos import Episode

EPISODE = 150
"""Requests an episode."""


def main(requests: int, seed: int) -> int:
    logging.disable(logging.ERROR)  # upstream warns of every abort
    counts: Counter[str] = Counter()
    violations = 0
    number = seed * 1_000_000
    while counts["sent"] < requests:
        number += 1
        episode = None
        try:
            episode = Episode(number, EPISODE)
            counts += episode.run()
        except Exception:
            violations += 1
            traceback.print_exc()
            print(f"episode {number} failed: {episode.setting if episode else 'at its start'}", file=sys.stderr)
            counts["sent"] += EPISODE
            pool.discard()
        print(f"\r{counts['sent']} of {requests} requests, {violations} violations", end="", file=sys.stderr)
    print(file=sys.stderr)
    print(", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    print(f"{counts['sent']} requests, {violations} violations, seed {seed}")
    pool.discard()
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
