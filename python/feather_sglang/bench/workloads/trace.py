"""``--data PATH``: what it is, told by its content."""

from __future__ import annotations

from pathlib import Path

from feather_sglang.bench.workloads import Tokenizer, Workload, files
from feather_sglang.bench.workloads.miniswe import miniswe
from feather_sglang.bench.workloads.mooncake import mooncake
from feather_sglang.bench.workloads.recorded import Wishes
from feather_sglang.bench.workloads.taubench import taubench
from feather_sglang.cli.errors import UsageError
from feather_sglang.simulate.traces.lines import TraceError

KINDS = "a Mooncake trace (JSONL), mini-swe sessions (JSONL, or a folder of them) or tau-bench conversations (JSON)"


def trace(path: Path, tokenizer: Tokenizer, wishes: Wishes) -> Workload:
    """The workload that a file or folder holds.

    :raises UsageError: if it is none, empty or damaged, or asks for what it does not have.
    """
    with files.told():
        return _read(path, tokenizer, wishes)


def _read(path: Path, tokenizer: Tokenizer, wishes: Wishes) -> Workload:
    if path.is_dir():
        found = sorted(path.glob("*.jsonl"))
        if not found:
            raise TraceError(f"{path} holds no *.jsonl; expected {KINDS}")
        return miniswe(found, tokenizer, wishes)
    if _begins_a_list(path):
        return taubench(path, tokenizer, wishes)
    first = files.lines_of(path)[0]
    if "hash_ids" in first.fields:
        if wishes.interleaved:
            raise UsageError(f"--interleaved: {path} is one stream of requests; leave it out")
        return mooncake(path, tokenizer, wishes)
    if "session_id" in first.fields:
        return miniswe([path], tokenizer, wishes)
    raise first.wrong(f"its keys are {', '.join(first.fields) or '(none)'}", KINDS)


def _begins_a_list(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(64).lstrip().startswith(b"[")
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror}): give {KINDS}") from None
