"""The order in which arms are measured, and what is left when that ends early. Runs are canned: nothing is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from feather_sglang.bench import rounds
from feather_sglang.bench.arms import Arm
from feather_sglang.bench.client import Reply, RequestFailed
from feather_sglang.bench.kv import RunningKV
from feather_sglang.bench.results import Run
from feather_sglang.bench.workloads import Request, Workload
from feather_sglang.cli.server import ServerFailed


class Servers:
    """Counts what is up; ``trouble`` is raised in place of the start of an arm."""

    def __init__(self) -> None:
        self.up = 0
        self.trouble: dict[str, Exception] = {}

    @contextmanager
    def serving(self, name: str, arm: Arm) -> Iterator[Any]:
        if name in self.trouble:
            raise self.trouble[name]
        self.up += 1
        try:
            yield None, 1.0
        finally:
            self.up -= 1

    def log(self, name: str) -> None:
        return None


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture
def run(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[rounds.Ended, list[int]]]:
    """Two arms on two workloads; ``after`` so many runs, ``trouble`` is raised."""

    def run(repeats: int = 1, after: int = 99, trouble: BaseException | None = None) -> tuple[rounds.Ended, list[int]]:
        kept: list[int] = []

        def measure(target: Any, workload: Workload, *, arm: str, round: int, tokenizer: str) -> Run:
            if len(kept) == after and trouble is not None:
                raise trouble
            replies = [Reply(1.0, 2.0, 2, 9, 0)]
            return Run(arm, workload.name, round, replies, 2.0, 1.0, None, 0, RunningKV(0, 0), None, None)

        monkeypatch.setattr(rounds, "measure", measure)
        workloads = [Workload(name, [Request((1, 2), 2)]) for name in ("one", "two")]
        all_rounds = rounds.Rounds(servers, {"fcfs": Arm(()), "feather": Arm(())}, workloads, "tokenizer")
        return all_rounds.run(repeats, lambda runs: kept.append(len(runs))), kept

    return run


def test_every_other_round_goes_backwards_and_everything_is_kept_as_it_comes(run: Any) -> None:
    ended, kept = run(repeats=3)
    order = [each.arm for each in ended.runs if each.workload == "one"]
    assert order == ["fcfs", "feather", "feather", "fcfs", "fcfs", "feather"]
    assert kept == list(range(1, 13))
    assert (ended.status, ended.stopped) == (0, None)
    assert {each.start_seconds for each in ended.runs} == {1.0}


@pytest.mark.parametrize(
    ("trouble", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted at feather, round 1 of 2; no server of ours is left"),
        (RequestFailed("a request failed: why"), 1, "stopped at feather, round 1 of 2: a request failed: why"),
        (ConnectionRefusedError(111, "refused"), 1, "stopped at feather, round 1 of 2: [Errno 111] refused"),
    ],
)
def test_what_was_measured_stays(run: Any, servers: Servers, trouble: BaseException, status: int, said: str) -> None:
    ended, kept = run(repeats=2, after=3, trouble=trouble)
    assert [(each.arm, each.workload) for each in ended.runs] == [("fcfs", "one"), ("fcfs", "two"), ("feather", "one")]
    assert kept == [1, 2, 3]
    assert (ended.status, ended.stopped) == (status, said)
    assert servers.up == 0


def test_a_server_that_does_not_start(run: Any, servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    servers.trouble["feather"] = ServerFailed("the server ended with status 1; its log ends:\nlines", 1)
    ended, _ = run()
    assert len(ended.runs) == 2
    assert (ended.status, ended.stopped) == (1, "stopped at feather: the server ended with status 1")
    assert "lines" in capsys.readouterr().err
