"""Parameters of the FlashInfer methods that are called, read from its sources: no GPU, and no import of it.

``python -m tests.attention.flashinfer_signatures WHEEL ...`` prints what ``flashinfer_signatures.json`` holds
(``pip download --no-deps flashinfer-python==0.6.13``).
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from pathlib import Path

CLASS = "MultiLevelCascadeAttentionWrapper"
METHODS = ("__init__", "plan", "run", "reset_workspace_buffer")
RECORD = Path(__file__).with_suffix(".json")

Parameters = dict[str, list[tuple[str, bool]]]
"""By method: name, and whether there is a default, in order."""


def parameters_of(source: str) -> Parameters:
    """Of the class in the source of ``flashinfer/cascade.py``."""
    tree = ast.parse(source)
    of_class = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == CLASS)
    methods = {node.name: node.args for node in of_class.body if isinstance(node, ast.FunctionDef)}
    found = {}
    for name in METHODS:
        given = methods[name].args
        required = len(given) - len(methods[name].defaults)
        found[name] = [(each.arg, i >= required) for i, each in enumerate(given)]
    return found


def main(wheels: list[str]) -> None:
    record = {}
    for wheel in wheels:
        version = re.search(r"-(\d[^-]*)-", Path(wheel).name)
        assert version is not None, wheel
        with zipfile.ZipFile(wheel) as files:
            record[version[1]] = parameters_of(files.read("flashinfer/cascade.py").decode())
    of_versions = [
        f' "{version}": {{\n'
        + ",\n".join(f'  "{name}": {json.dumps(given)}' for name, given in methods.items())
        + "\n }"
        for version, methods in record.items()
    ]
    print("{\n" + ",\n".join(of_versions) + "\n}")


if __name__ == "__main__":
    main(sys.argv[1:])
