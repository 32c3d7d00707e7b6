"""``feather doctor``: what is installed, what would serve, whether it fits, and what mends it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import logging
import os
import platform
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import feather_sglang
from feather_sglang.cli import model

SCHEMA = {"name": "feather doctor", "version": 1}
SKEW_SCHEMA = {"name": "feather doctor --skew", "version": 1}


class Finding(NamedTuple):
    """One thing that was looked at."""

    value: str
    """What was found."""
    problem: str | None = None
    """What is wrong with it, in one clause; None: nothing."""
    remedy: str | None = None
    """The command that mends it."""


def main(argv: list[str]) -> int:
    """Print the findings; 1 if any of them is a problem, else 0."""
    parser = argparse.ArgumentParser(
        prog="feather doctor",
        description="Say what is installed, what would serve, whether it fits, and the command that mends what does "
        "not. The exit status is 1 when something is wrong.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--skew",
        action="store_true",
        help="instead, time decode steps of even and of skewed KV lengths, and say whether --feather-decode aligned "
        "can pay here (about a minute)",
    )
    parser.add_argument("--attention-backend", metavar="NAME", help="with --skew: another than SGLang would choose")
    arguments = parser.parse_args(argv)
    as_json = arguments.json
    if arguments.skew:
        return _skew(arguments.attention_backend, as_json)
    findings = examine()
    sound = all(finding.problem is None for finding in findings.values())
    if as_json:
        checks = {subject: finding._asdict() for subject, finding in findings.items()}
        print(json.dumps({"schema": SCHEMA, "ok": sound, "checks": checks}, indent=2))
    else:
        print("\n".join(_lines(subject, finding) for subject, finding in findings.items()))
        print("\nnothing is wrong" if sound else "\nsomething is wrong: see above")
    return 0 if sound else 1


def _skew(attention_backend: str | None, as_json: bool) -> int:
    with _quiet():
        from feather_sglang.bench import skew

        found = skew.measure(attention_backend)
    print(json.dumps({"schema": SKEW_SCHEMA, **skew.report(found)}, indent=2) if as_json else skew.lines(found))
    return 0


def examine() -> dict[str, Finding]:
    """All findings, by subject, in the order in which they are best mended."""
    findings = {}
    with _quiet():
        for subject, look in _CHECKS.items():
            try:
                findings[subject] = look()
            except Exception as error:  # whatever is broken, the others are still looked at
                findings[subject] = Finding("cannot be told", f"{type(error).__name__}: {_first_line(error)}")
    return findings


def _python() -> Finding:
    return Finding(platform.python_version())


def _feather() -> Finding:
    return Finding(feather_sglang.__version__)


def _extension() -> Finding:
    try:
        from feather_sglang import _cht
    except ImportError as error:
        mend = "pip install --force-reinstall --no-deps feather-sglang (in a clone: make setup)"
        return Finding("missing", _first_line(error), mend)
    info: dict[str, Any] = dict(_cht.build_info())
    value = ", ".join(f"{name} {content}" for name, content in info.items())
    if info.get("profile") == "debug":
        return Finding(value, "built without optimisation, many times slower", "make setup")
    return Finding(value)


def _torch() -> Finding:
    if (version := _version("torch")) is None:
        return Finding("missing", "SGLang needs it", "pip install sglang")
    import torch

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return Finding(f"{version}, {f'accelerator {device}' if device else 'no accelerator'}")


def _sglang() -> Finding:
    from feather_sglang.sglang import compat

    newest = compat.supported_versions[-1]
    if (version := _version("sglang")) is None:
        return Finding("missing", "there is nothing to plug into", f"pip install sglang=={newest}")
    problem = "; ".join(compat.check_version(version)) or None
    return Finding(version, problem, problem and f"pip install sglang=={newest}")


def _cpu_platform() -> Finding:
    if (version := _version("feather-sglang-cpu")) is None:
        return Finding("not installed")  # a problem only where nothing else can serve: see _serving_platform
    import feather_sglang_cpu

    reason = feather_sglang_cpu.why_not()
    return Finding(f"{version}, " + (f"stands back: {reason}" if reason else "serves"))


def _serving_platform() -> Finding:
    from sglang.srt.platforms import current_platform

    kind = type(current_platform)
    value = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__name__ == "SRTPlatform":  # SGLang's base class: it recognised nothing
        return Finding(value, "SGLang finds nothing to serve on", "pip install --no-deps feather-sglang-cpu")
    return Finding(value)


def _attention() -> Finding:
    from sglang.srt.platforms import current_platform

    if current_platform.is_out_of_tree():
        return Finding(str(current_platform.get_default_attention_backend()))
    return Finding("SGLang's choice for the model and the device")


def _plugin() -> Finding:
    points = [p for p in importlib.metadata.entry_points(group="sglang.srt.plugins") if p.name == "feather"]
    if not points:
        mend = "pip install --force-reinstall --no-deps feather-sglang (in a clone: make setup)"
        return Finding("not registered", "SGLang does not see the package", mend)
    allowed = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",") if name.strip()]
    if allowed and "feather" not in allowed:
        mend = f"export SGLANG_PLUGINS={','.join([*allowed, 'feather'])}"
        return Finding("filtered", f"SGLANG_PLUGINS allows only {', '.join(allowed)}", mend)
    return Finding(points[0].value)


def _hooks() -> Finding:
    """Load the plugin as a scheduler's process does, and see whether every hook took."""
    import sglang.srt.managers.scheduler  # noqa: F401  what is hooked must be there first
    from sglang.srt.plugins import load_plugins

    from feather_sglang.sglang import compat

    load_plugins()
    if problems := compat.check_route():
        mend = f"pip install sglang=={compat.supported_versions[-1]}, or serve with --feather-on-mismatch fcfs"
        return Finding("do not fit", "; ".join(problems), mend)
    return Finding("none: SGLang is patched" if compat.is_patched() else "all in place")


def _policy() -> Finding:
    from feather_sglang.sglang.options import DISABLE, is_disabled, read_options

    options = read_options({}, os.environ)
    if is_disabled(os.environ):
        return Finding(f"off: {DISABLE} is set, so it serves first come, first served")
    return Finding(f"on; where it does not fit: {options.on_mismatch}")


def _environment() -> Finding:
    """What the environment tells the plugin and the platforms; never wrong, but good to see."""
    told = [name for name in sorted(os.environ) if name.startswith("FEATHER_") or name in _SELECTORS]
    return Finding(", ".join(f"{name}={os.environ[name]}" for name in told) or "nothing set")


_SELECTORS = ("SGLANG_PLATFORM", "SGLANG_PLUGINS", "SGLANG_USE_CPU_ENGINE")


def _model() -> Finding:
    folder = model.cache_folder() / model.NAME
    if model.is_intact(folder):
        return Finding(str(folder))
    return Finding("damaged, made anew when it is needed" if folder.exists() else "made when it is needed")


_CHECKS: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "torch": _torch,
    "sglang": _sglang,
    "feather-sglang": _feather,
    "extension": _extension,
    "feather-sglang-cpu": _cpu_platform,
    "platform": _serving_platform,
    "attention backend": _attention,
    "plugin": _plugin,
    "hooks": _hooks,
    "policy": _policy,
    "environment": _environment,
    "embedded model": _model,
}


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def _lines(subject: str, finding: Finding) -> str:
    mark = "ok   " if finding.problem is None else "WRONG"
    line = f"{mark}  {subject:<18}  {finding.value}"
    if finding.problem is not None:
        line += f": {finding.problem}"
    return line if finding.remedy is None else f"{line}\n       {'mend it with':<18}  {finding.remedy}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what SGLang prints while it is imported out of the report."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            yield
    finally:
        logging.disable(level)
