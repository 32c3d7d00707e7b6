"""Other versions of SGLang, each with the dependencies that it asks for: ``make matrix``.

For each an environment is made in the user's cache (about 8 GB, kept for the next time), the wheels of ``make wheel``
are put beside SGLang, and the tests that drive a real Scheduler or a server run there, on what is in these wheels. What
came of it, and on which machine, goes into ``matrix.json``; versions that were not asked for keep what they had.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from pathlib import Path
from typing import Any

from feather_sglang.bench.machine import machine
from feather_sglang.patch.series import all_series

HERE = Path(__file__).resolve().parent
RESULT = HERE / "matrix.json"
SCHEMA = "feather-matrix/1"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feather-sglang" / "matrix"
DEFAULT = "0.5.21"
"""With the newest version, which ``make test`` runs, it has every branch of the code that tells versions apart."""

OVERRIDE = "cuda-tile>=1.6.0\n"
"""SGLang 0.5.20 to 0.5.22 pin a release candidate of it that is no package index's, and that a CPU does not need."""

DISTRIBUTIONS = ("sglang", "torch", "transformers", "flashinfer-python", "feather-sglang")
TESTS = (
    "tests/live/test_patched.py",
    "tests/live/test_entry_points.py",
    *(f"tests/sglang/test_{name}.py" for name in ("queue", "barrier", "ticks", "previous")),
)
"""One trace on both routes, a patched server of two ranks, servers with the plugin, and what the rules promise; on
another version than the default, only the first of these files."""


def make(version: str, wheels: Path, folder: Path) -> Path:
    """The Python of an environment with a version of SGLang, its dependencies, and these wheels."""
    python = folder / "bin" / "python"
    if not python.exists():
        run(["uv", "venv", "--quiet", "--python", sys.executable, folder])
    override = folder / "override.txt"
    override.write_text(OVERRIDE)
    asked = [f"sglang=={version}", "pytest", "matplotlib", "ruff"]
    run(["uv", "pip", "install", "--quiet", "--python", python, "--override", override, *asked])
    ours = [*wheels.glob("feather_sglang-*.whl"), *wheels.glob("feather_sglang_cpu-*.whl")]
    run(["uv", "pip", "install", "--quiet", "--python", python, "--no-deps", "--reinstall", *ours])
    return python


def run(command: list[Any], **named: Any) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        [str(part) for part in command], check=True, text=True, env=os.environ | {"PATH": path}, **named
    )


def tested(python: Path, tests: list[str]) -> dict[str, Any]:
    """What came of the tests in an environment."""
    report = python.parents[1] / "report.xml"
    report.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
    subprocess.run(command, cwd=HERE.parent, env=environment)
    seconds = round(time.monotonic() - began)
    if not report.exists():
        raise SystemExit(
            f"{python}: the tests did not run to their end; run them by hand: {' '.join(map(str, command))}"
        )
    return {"with": versions(python), "seconds": seconds, **outcomes(report)}


def versions(python: Path) -> dict[str, str]:
    """Of what matters in an environment."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    found = run([python, "-c", code, *DISTRIBUTIONS], stdout=subprocess.PIPE).stdout
    return dict(zip(DISTRIBUTIONS, found.split(), strict=True))


def outcomes(report: Path) -> dict[str, Any]:
    """Of each file of tests how many passed; each test that did not, and why."""
    passed: dict[str, int] = {}
    skipped: dict[str, str] = {}
    failed: dict[str, str] = {}
    for case in xml.parse(report).iter("testcase"):
        module = [part for part in case.get("classname", "").split(".") if not part.startswith("Test")]
        file = "/".join(module) + ".py"
        name = f"{file}::{case.get('name')}"
        if (found := case.find("skipped")) is not None:
            skipped[name] = found.get("message", "")
        elif wrong := [*case.iter("failure"), *case.iter("error")]:
            failed[name] = wrong[0].get("message", "").splitlines()[0]
        else:
            passed[file] = passed.get(file, 0) + 1
    return {"passed": passed, "skipped": skipped, "failed": failed}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version", nargs="*", help=f"of those that have a series; default: {DEFAULT}")
    parser.add_argument("--dist", type=Path, required=True, help="folder of the wheels that `make wheel` builds")
    parser.add_argument("--tests", nargs="+", help="other tests; the result is not kept then")
    given = parser.parse_args()
    if unknown := set(given.version) - set(all_series()):
        parser.error(f"there is no series for {', '.join(unknown)}; expected some of {', '.join(all_series())}")
    sound = True
    for version in given.version or [DEFAULT]:
        python = make(version, given.dist, CACHE / f"sglang-{version}")
        found = tested(python, given.tests or list(TESTS if version == DEFAULT else TESTS[:1]))
        sound &= not found["failed"]
        print(f"SGLang {version}: {sum(found['passed'].values())} passed, {len(found['failed'])} failed", flush=True)
        if given.tests is None:
            known = json.loads(RESULT.read_text())["versions"] if RESULT.exists() else {}
            known[version] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine(), **found}
            RESULT.write_text(json.dumps({"schema": SCHEMA, "versions": dict(sorted(known.items()))}, indent=1) + "\n")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
