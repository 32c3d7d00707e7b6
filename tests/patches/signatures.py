"""Whether the hooks fit a version, read from its source: nothing of it is imported."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from feather_sglang.sglang import compat
from feather_sglang.sglang.plugin import argument_hooks, attention_hooks, scheduler_hooks


def problems(site: Path) -> list[str]:
    """What is wrong with the hooks, in one clause each (as ``compat.check_hooks`` says it).

    :param site: the folder that holds ``sglang``.
    """
    found = []
    for hook in [*argument_hooks(), *scheduler_hooks(), *attention_hooks()]:
        parameters = _parameters(site, hook.target)
        if parameters is None:
            found.append(f"{hook.target} does not exist")
        elif lacking := [name for name in hook.needs if name not in parameters]:
            found.append(f"{hook.target} has no parameter {', '.join(lacking)}")
    given = _parameters(site, compat.REQUEST) or []
    if lacking := [name for name in compat.REQUEST_NEEDS if name not in given]:
        found.append(f"a request has no {', '.join(lacking)}")
    return found


@cache
def functions(path: Path) -> dict[str, list[str]]:
    """Parameters by ``name`` or ``Class.name``; what a module imports has an empty list."""
    return _functions(path.read_text())


def _functions(source: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: [] for alias in node.names}
        for owner, item in [("", node), *((f"{node.name}.", i) for i in getattr(node, "body", ()) if _is_class(node))]:
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
                args = item.args
                found[owner + item.name] = [arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    return found


def _is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef)


def _parameters(site: Path, target: str) -> list[str] | None:
    parts = target.split(".")
    for length in range(len(parts) - 1, 0, -1):
        folder = site.joinpath(*parts[:length])
        for path in (folder.with_suffix(".py"), folder / "__init__.py"):
            if path.is_file():
                return _functions(path.read_text()).get(".".join(parts[length:]))
    return None
