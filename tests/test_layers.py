"""Layers import downwards only: index <- core <- (simulate, adapters) <- (bench, cli)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "python" / "feather_sglang"

MAY_IMPORT = {
    "core": {"_cht", "core"},
    "simulate": {"core", "simulate"},
    "sglang": {"core", "sglang"},
    "patch": {"patch"},
    "bench": {"_cht", "core", "sglang", "simulate", "bench", "cli"},
    "cli": {"_cht", "core", "sglang", "simulate", "bench", "patch", "cli"},
}
"""Parts of the package that each part may import."""

ENGINES = {"sglang", "torch", "vllm"}
MAY_IMPORT_ENGINES = {"sglang", "cli", "bench"}


def imports(source: str) -> set[str]:
    """Dotted names that Python source imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "relative imports hide the layer"
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def violations(part: str, source: str) -> set[str]:
    """Imports in a file of ``part`` that go upwards, or to an engine that it must not know."""
    wrong = set()
    for name in imports(source):
        head, *rest = name.split(".")
        if head == "feather_sglang" and rest and rest[0] in MAY_IMPORT.keys() | {"_cht"}:
            wrong |= {name} if rest[0] not in MAY_IMPORT[part] else set()
        elif head in ENGINES and part not in MAY_IMPORT_ENGINES:
            wrong.add(name)
    return wrong


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_downwards(path):
    part = path.relative_to(PACKAGE).parts[0]
    if part in MAY_IMPORT:
        assert violations(part, path.read_text()) == set()


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("core", "from feather_sglang.sglang import adapter"),
        ("core", "def f():\n    import torch"),
        ("core", "import sglang.srt"),
        ("simulate", "from feather_sglang.sglang.rows import row_of"),
        ("sglang", "from feather_sglang.cli import main"),
    ],
)
def test_an_upward_import_is_found(part, source):
    assert violations(part, source)


def test_the_index_knows_no_python():
    """Only what the cargo feature ``python`` adds does."""
    source = ROOT / "cht-rs" / "src"
    binding = set(re.findall(r'#\[cfg\(feature = "python"\)\]\s*mod (\w+);', (source / "lib.rs").read_text()))
    assert "py" in binding
    for path in source.rglob("*.rs"):
        if path.stem not in binding:
            assert "pyo3" not in path.read_text(), path.name


def test_importing_the_package_is_light():
    code = "import sys, feather_sglang, feather_sglang.core.scheduler; print({'torch', 'sglang'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
