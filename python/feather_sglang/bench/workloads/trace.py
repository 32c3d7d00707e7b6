"""``--data PATH``: what it is, told by its content."""

from __future__ import annotations

from pathlib import Path

from feather_sglang.bench.workloads import Tokenizer, Workload, files
from feather_sglang.bench.workloads.miniswe import miniswe
from feather_sglang.bench.workloads.mooncake import mooncake
from feather_sglang.bench.workloads.recorded import Wishes
from feather_sglang.bench.workloads.taubench import taubench
from feather_sglang.cli.errors import UsageError

KINDS = "a Mooncake trace (JSONL), mini-swe sessions (JSONL, or a folder of them) or tau-bench conversations (JSON)"


def trace(path: Path, tokenizer: Tokenizer, wishes: Wishes) -> Workload:
    """The workload that a file or folder holds.

    :raises UsageError: if it is none, empty or damaged, or asks for what it does not have.
    """
    if path.is_dir():
        found = sorted(path.glob("*.jsonl"))
        if not found:
            raise UsageError(f"{path} holds no *.jsonl: expected {KINDS}")
        return miniswe(found, tokenizer, wishes)
    if files.text_of(path, f"give {KINDS}").lstrip().startswith("["):
        return taubench(path, tokenizer, wishes)
    where, first = next(files.json_lines(path))
    if "hash_ids" in first:
        if wishes.interleaved:
            raise UsageError(f"--interleaved: {path} is one stream of requests; leave it out")
        return mooncake(path, tokenizer, wishes)
    if "session_id" in first:
        return miniswe([path], tokenizer, wishes)
    raise UsageError(f"{where} has keys {', '.join(first) or '(none)'}: expected {KINDS}")
