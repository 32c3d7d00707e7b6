"""Flags on SGLang's command line, kept with its arguments, and checked before any child is started.

A scheduler that fails at its start makes SGLang's launcher wait a minute, so the launcher finds out first.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import secrets
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from feather_sglang import __version__
from feather_sglang.sglang import coexistence, observe
from feather_sglang.sglang.attention import BACKEND
from feather_sglang.sglang.attention.support import check_arguments
from feather_sglang.sglang.compat import check_patches, check_version
from feather_sglang.sglang.options import (
    DISABLE,
    FLAGS,
    POLICY,
    OptionError,
    Options,
    is_disabled,
    read_options,
    settings_of,
)
from feather_sglang.sglang.parking import support

_EXIT_STATUS = 2
"""As argparse exits for a bad argument."""


def add_flags(result: Any, parser: argparse.ArgumentParser) -> None:
    """AFTER ``ServerArgs.add_cli_args``: the choice ``feather`` and its flags.

    The flags are read as text and checked in ``check``: one message for the command line, YAML and the environment.
    """
    for action in parser._actions:
        if action.dest == "schedule_policy" and action.choices is not None and POLICY not in action.choices:
            action.choices = [*action.choices, POLICY]
    group = parser.add_argument_group(
        "feather", "Options of --schedule-policy feather and of --attention-backend feather-cascade."
    )
    for flag in FLAGS:
        shown = f" Default: {flag.default}." if flag.default is not None else ""
        group.add_argument(
            flag.option,
            dest=f"feather_{flag.name}",
            metavar=flag.expects,
            help=f"{flag.help}{shown} Also {flag.variable}.",
        )


def keep_flags(server_args: Any, cls: type, args: argparse.Namespace) -> None:
    """AFTER ``ServerArgs.from_cli_args``: what was given goes to the children with the arguments.

    Bad options end the launcher here, with one line.
    """
    given = {flag.name: value for flag in FLAGS if (value := getattr(args, f"feather_{flag.name}", None)) is not None}
    _keep(server_args, given)
    try:
        if uses_backend(server_args):
            options_of(server_args)
        if server_args.schedule_policy == POLICY:
            _check(server_args, page_size=server_args.page_size)
            observe.check(options_of(server_args))
    except OptionError as error:
        _exit(error)


def check(result: Any, server_args: Any) -> None:
    """AFTER ``ServerArgs.check_server_args``: once all arguments are resolved, for the command line and ``Engine``.

    :raises OptionError: in a program that made an ``Engine``; a command line ends with one line.
    """
    resolved = resolved_of(server_args)
    if resolved.schedule_policy != POLICY and not uses_backend(resolved):
        return
    if "_feather" not in server_args.__dict__:
        _keep(server_args, {}, command_line=False)
    try:
        if uses_backend(resolved):
            check_arguments(server_args, resolved)
        if resolved.schedule_policy == POLICY:
            _check(server_args, page_size=resolved.page_size)
            options = options_of(server_args)
            observe.check(options, resolved)
            support.check_arguments(options, resolved)
    except OptionError as error:
        if server_args._feather["command_line"]:
            _exit(error)
        raise


def read_config(original: Callable[..., Any], merger: Any, argv: list[str], *args: Any, **named: Any) -> Any:
    """AROUND ``ConfigArgumentMerger.merge_config_with_args``: a file that cannot be read, or an option that this
    version does not have, as one line.

    Only where feather is spoken of; others see what they always saw.
    """
    if not any(POLICY in argument for argument in argv):
        return original(merger, argv, *args, **named)
    log = logging.getLogger(type(merger).__module__)
    log.disabled = True  # it would say the same again, in several lines
    try:
        merged = original(merger, argv, *args, **named)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        _exit(OptionError(f"--config cannot be used: {first}. Give a YAML file of arguments (key: value)."))
    finally:
        log.disabled = False
    prefix, options = f"--{POLICY}-", [flag.option for flag in FLAGS]
    for name in (argument.partition("=")[0] for argument in merged):
        if name.startswith(prefix) and not any(option.startswith(name) for option in options):
            names = [option.removeprefix(prefix) for option in options]
            near = difflib.get_close_matches(name.removeprefix(prefix), names, n=1, cutoff=0)[0]
            _exit(OptionError(f"{name} is no option of feather-sglang {__version__}; the nearest is {prefix}{near}."))
    return merged


def uses_backend(server_args: Any) -> bool:
    """Whether ``feather-cascade`` is to run attention, all of it or one of prefill and decode."""
    names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    return any(getattr(server_args, name, None) == BACKEND for name in names)


def options_of(server_args: Any) -> Options:
    """The options that came with the arguments, in any process.

    :raises OptionError: if one cannot be read.
    """
    return read_options(server_args.__dict__.get("_feather", {}).get("flags", {}), os.environ)


def hash_key_of(server_args: Any) -> tuple[int, int]:
    """The key of the prefix hashes: drawn once, where the arguments were read, and equal in all of its children."""
    key: tuple[int, int] | None = server_args.__dict__.get("_feather", {}).get("hash_key")
    return key if key is not None else _draw_key()


def _keep(server_args: Any, flags: dict[str, str], command_line: bool = True) -> None:
    # SGLang seals its own fields, carries what starts with an underscore to its children, and shows none of it.
    server_args._feather = {"flags": flags, "hash_key": _draw_key(), "command_line": command_line}


def _draw_key() -> tuple[int, int]:
    return secrets.randbits(64), secrets.randbits(64)


def _check(server_args: Any, page_size: int | None) -> None:
    options = options_of(server_args)
    # The pool's size is known only to the scheduler, and cannot be wrong.
    settings_of(options, page_size=page_size or 1, kv_capacity=1 << 20, hash_key=(0, 0))
    support.check_options(options)
    support.check_arguments(options, server_args)
    if (case := coexistence.first(coexistence.REFUSED, server_args)) is not None:
        raise OptionError(
            f"--schedule-policy feather does not go with {case.what}: {case.why}. Leave one of the two out."
        )
    if (
        options.on_mismatch == "refuse"
        and not is_disabled(os.environ)
        and (problems := check_version() + check_patches())
    ):
        raise OptionError(mismatch_message(problems))


def mismatch_message(problems: list[str]) -> str:
    """What a refusal says, in one line."""
    return (
        f"--schedule-policy feather cannot be trusted here: {'; '.join(problems)}. Install a version that fits, give "
        f"--feather-on-mismatch fcfs, or set {DISABLE}=1 to serve first come, first served."
    )


def resolved_of(server_args: Any) -> Any:
    """The arguments with everything that SGLang decided, to read from."""
    from sglang.srt.arg_groups.model_override_base import resolving_view

    return resolving_view(server_args)


def _exit(error: OptionError) -> NoReturn:
    print(f"feather: {error}", file=sys.stderr, flush=True)
    sys.exit(_EXIT_STATUS)
