"""``python -m tests.soak --requests N --seed S``: shards, until so many requests were sent; or one episode again."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from tests.harness import pool
from tests.soak import script, shards, shrink
from tests.soak.draw import draw

RESULTS = Path(__file__).with_name("results.txt")
FAILED = Path("target/soak")
SHRINK_SECONDS = 300


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help=f"in all, in shards of {shards.SHARD}")
    parser.add_argument("--seed", type=int, default=1, help="two side by side take two seeds")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="a line for each shard; what it has is not run again"
    )
    parser.add_argument("--replay", metavar="NUMBER|FILE", help="one episode, by its number or its script")
    options = parser.parse_args(argv)
    logging.disable(logging.ERROR)  # upstream warns of every abort
    try:
        return replay(options.replay) if options.replay else soak(options.requests, options.seed, options.results)
    finally:
        pool.discard()


def soak(requests: int, seed: int, results: Path) -> int:
    finished, violations = shards.done(results, seed), 0

    def failed(number: int) -> None:
        nonlocal violations
        violations += 1
        path = cut_down(number)
        print(f"episode {number} failed: python -m tests.soak --replay {number}, or, shorter, {path}", file=sys.stderr)

    for shard, begin in enumerate(range(0, requests, shards.SHARD)):
        if shard in finished:
            continue
        line = shards.run(seed, shard, min(shards.SHARD, requests - begin), failed)
        print(line, flush=True)
        with results.open("a") as file:
            file.write(line + "\n")
    print(shards.total(results))
    return 1 if violations else 0


def cut_down(number: int) -> Path:
    """The shortest script found that fails as an episode does, in a file."""
    whole = draw(number, shards.EPISODE)
    short = shrink.shrink(whole, SHRINK_SECONDS)
    if shrink.failure_of(short, fresh=True) is None:
        short = whole  # it takes what ran before it
    FAILED.mkdir(parents=True, exist_ok=True)
    path = FAILED / f"{number}.script"
    short.write(path)
    return path


def replay(what: str) -> int:
    found = draw(int(what), shards.EPISODE) if what.isdigit() else script.read(Path(what))
    failure = shrink.failure_of(found, fresh=True)
    print(failure or "it passes")
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
