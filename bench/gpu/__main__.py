"""``python -m bench.gpu``: FlashInfer's decode attention on batches that share prefixes, within a budget of minutes.

Run from the root of the repository. Needs one NVIDIA GPU, PyTorch, nvcc, and the wheels of ``bench.gpu.wheels``; no
network, no SGLang. ``--dry-run`` needs none of these but PyTorch.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "python") not in sys.path:
    sys.path.insert(0, str(ROOT / "python"))

from bench.gpu import wheels  # noqa: E402

BUDGET = 480.0
"""Seconds."""


def main(argv: list[str]) -> int:
    """0; 1 if nothing could be measured; 2 for bad input."""
    options = _parser().parse_args(argv)
    try:
        import torch
    except ImportError:
        print("PyTorch is missing: install it for this machine's CUDA, e.g. `pip install torch`", file=sys.stderr)
        return 2
    if options.dry_run:
        from bench.gpu.rehearsal import rehearse

        return rehearse()
    if not torch.cuda.is_available():
        print("there is no GPU that PyTorch can use; `python -m bench.gpu --dry-run` needs none", file=sys.stderr)
        return 2
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", tempfile.mkdtemp(prefix="feather-gpu-"))
    if options.build is not None or options.profile is not None:
        from bench.gpu import session

        session.build(options.build) if options.build is not None else session.profile(options.profile)
        return 0
    deadline = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        site = Path(tempfile.mkdtemp(prefix="feather-gpu-site-"))
        installed = wheels.install(options.wheels, site)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    # For the processes that build and profile.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(site), str(ROOT), str(ROOT / "python"), os.environ.get("PYTHONPATH", "")]
    )
    import flashinfer

    from bench.gpu.session import Session

    versions = {
        "flashinfer": flashinfer.__version__,
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "nvcc": _nvcc(),
        "python": platform.python_version(),
    }
    command = shlex.join(["python", "-m", "bench.gpu", *argv])
    return Session(deadline, options.out, command, versions, installed).run()


def _nvcc() -> str:
    try:
        return subprocess.run(["nvcc", "--version"], capture_output=True, text=True).stdout.strip().splitlines()[-1]
    except (OSError, IndexError):
        return "not on the PATH"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__, allow_abbrev=False)
    parser.add_argument("--dry-run", action="store_true", help="plan every row, check every call, compute small ones")
    parser.add_argument(
        "--budget", type=float, default=BUDGET, metavar="SECONDS", help=f"in all (default: {BUDGET:.0f})"
    )
    parser.add_argument("--wheels", type=Path, default=wheels.FOLDER, metavar="FOLDER", help="what to install from")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "out", metavar="FOLDER", help="for gpu.json, gpu.txt"
    )
    parser.add_argument("--build", help=argparse.SUPPRESS)
    parser.add_argument("--profile", type=int, nargs="+", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
