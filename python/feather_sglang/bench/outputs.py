"""Where a bench writes what it measured: the options of every bench, and what is wrong with them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from feather_sglang.bench import results
from feather_sglang.bench.picture import require_matplotlib
from feather_sglang.cli.errors import UsageError


class Outputs(NamedTuple):
    """Files that were asked for."""

    json: Path | None
    pictures: list[Path]

    @classmethod
    def of(cls, options: argparse.Namespace) -> Outputs:
        """:raises UsageError: if one of them cannot be written, before anything is measured."""
        pictures = [path for path in (options.svg, options.png) if path is not None]
        outputs = cls(options.json, pictures)
        if pictures:
            require_matplotlib()
        for path in outputs.files:
            if not path.resolve().parent.is_dir():
                raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
        return outputs

    @property
    def files(self) -> list[Path]:
        return [*([self.json] if self.json is not None else []), *self.pictures]

    def write(self, report: Mapping[str, Any], draw: Callable[..., None], **said: str | None) -> None:
        """Write what was asked for.

        :param draw: draws ``report`` to files, with what is to be ``said`` in the picture.
        """
        if self.json is not None:
            results.write(report, self.json)
        if self.pictures:
            draw(report, self.pictures, **said)

    def said(self) -> str:
        """What was written, to end a line with; empty if nothing was asked for."""
        return f"; wrote {', '.join(map(str, self.files))}" if self.files else ""


def add_options(parser: argparse.ArgumentParser) -> None:
    """``--json``, ``--svg`` and ``--png``."""
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results for programs")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the picture")
    parser.add_argument("--png", type=Path, metavar="FILE", help="write the picture")
