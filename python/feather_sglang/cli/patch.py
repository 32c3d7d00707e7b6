"""``feather patch``: SGLang's own files, changed so that they call the policy: no plugin, no hooks."""

from __future__ import annotations

import argparse
from pathlib import Path

from feather_sglang import __version__
from feather_sglang.cli.errors import UsageError
from feather_sglang.patch.change import apply_series, revert_series
from feather_sglang.patch.series import Series, all_series
from feather_sglang.patch.tree import PatchError, Tree, state_of

_VERBS = {
    "list": "the patches, and how much of them is in this SGLang",
    "check": "whether they can be applied: changes nothing; exit status 1 if not",
    "apply": "put them in: all of them, or nothing",
    "revert": "take them out: the files are then those that were published",
}


def main(argv: list[str]) -> int:
    """Run ``feather patch argv``.

    :raises UsageError: if this SGLang cannot be patched; nothing was changed.
    """
    parser = argparse.ArgumentParser(prog="feather patch", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="{list,check,apply,revert}")
    for verb, help in _VERBS.items():
        verbs.add_parser(verb, help=help, description=help).add_argument(
            "--sglang",
            type=Path,
            metavar="PATH",
            help="SGLang's package folder, the folder that it is in, or a checkout; default: the installed one",
        )
    given = parser.parse_args(argv)
    try:
        return _run(given.verb, given.sglang)
    except PatchError as error:
        raise UsageError(str(error)) from None


def _run(verb: str, path: Path | None) -> int:
    known = all_series()
    if verb == "list" and path is None:
        for version, series in known.items():
            print(f"SGLang {version}")
            _show(series, None)
        return 0
    tree = Tree.at(path)
    series = tree.series(known)
    where = f"SGLang {series.version} in {tree.package}"
    if verb == "apply":
        done = apply_series(tree, series, f"feather-sglang {__version__}")
        print(f"{where}: {'applied' if done else 'already applied'}")
        return 0
    if verb == "revert":
        done = revert_series(tree, series)
        print(f"{where}: {'reverted' if done else 'not applied, nothing to revert'}")
        return 0
    state = state_of(tree, series)
    print(f"{where}: {state}")
    if verb == "list":
        _show(series, tree)
        return 0
    return 0 if state.is_clean or state.is_applied else 1


def _show(series: Series, tree: Tree | None) -> None:
    for name, diffs in zip(series.names, series.diffs, strict=True):
        elsewhere = tree is not None and all(tree.path(path) is None for path in diffs)
        print(f"  {name[:4]}  {series.title(name)}{' (for a checkout only)' if elsewhere else ''}")
