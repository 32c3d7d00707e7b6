"""What the GPU machine lacks: collected here into ``bench/gpu/wheels``, installed there from it, without a network.

``python -m bench.gpu.wheels`` collects.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "wheels"
MOST_BYTES = 60 << 20
PACKAGES = {
    "flashinfer": "flashinfer-python==0.6.13",
    "tvm_ffi": "apache-tvm-ffi==0.1.11",
    "ninja": "ninja==1.13.0",
    "pynvml": "nvidia-ml-py==13.590.44",
    "einops": "einops==0.8.2",
    "tabulate": "tabulate==0.9.0",
    "click": "click==8.3.1",
    "filelock": "filelock==3.20.3",
    "packaging": "packaging==25.0",
}
"""Module: distribution. PyTorch, NumPy, requests and tqdm are expected there. FlashInfer's CuTe and cuDNN packages, of
hundreds of MB, are not: it imports and serves these kernels without them."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def collect(python: str = "3.12", folder: Path = FOLDER) -> int:
    """Bytes of the wheels in the folder, which is made anew.

    :param python: the version over there.
    :raises SystemExit: if pip finds one of them not, or if they are too large together.
    """
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", python, "--implementation", "cp", "--dest", str(folder)]
    command += [part for platform in PLATFORMS for part in ("--platform", platform)]
    if subprocess.run([*command, *PACKAGES.values()]).returncode:
        raise SystemExit("pip could not download the wheels (above); nothing was collected")
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    if size > MOST_BYTES:
        raise SystemExit(f"the wheels are {size / 2**20:.0f} MiB; expected at most {MOST_BYTES >> 20}")
    return size


def install(folder: Path, target: Path) -> list[str]:
    """Install what cannot be imported here, into ``target``; the names of the wheels.

    :raises RuntimeError: if a wheel is missing, or pip fails.
    """
    missing = [name for module, name in PACKAGES.items() if importlib.util.find_spec(module) is None]
    wheels = [_wheel(folder, name) for name in missing]
    if wheels:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        done = subprocess.run([*command, "--target", str(target), *wheels], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pip could not install the wheels: {done.stderr.strip().splitlines()[-1:]}")
        sys.path.insert(0, str(target))
        importlib.invalidate_caches()
    return [Path(wheel).name for wheel in wheels]


def _wheel(folder: Path, requirement: str) -> str:
    name, _, version = requirement.partition("==")
    found: Iterable[Path] = folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    for wheel in found:
        return str(wheel)
    raise RuntimeError(
        f"{folder} has no wheel of {requirement}: run `python -m bench.gpu.wheels` where there is a network"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.wheels", description=__doc__, allow_abbrev=False)
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="of the GPU machine (default: 3.12)")
    size = collect(parser.parse_args().python)
    print(f"{len(list(FOLDER.glob('*.whl')))} wheels, {size / 2**20:.1f} MiB, in {FOLDER}")


if __name__ == "__main__":
    main()
