"""``feather report``: one page of HTML from the JSON of any benches and simulations, with everything in it.

It needs no network and no script, and can be read on a phone: tables and pictures scroll in themselves.
"""

from __future__ import annotations

import argparse
import html
import json
import tempfile
from base64 import b64encode
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from feather_sglang.bench.picture import require_matplotlib
from feather_sglang.cli.errors import UsageError

_HEADING = "Feather: measured and modelled"
_REQUIRED = ("schema", "command", "machine", "versions", "rows")
_PICTURES = {
    "feather bench attention": "feather_sglang.bench.attention_picture",
    "feather bench gates": "feather_sglang.bench.gates_picture",
    "feather bench orders": "feather_sglang.bench.orders_picture",
    "feather bench overhead": "feather_sglang.bench.overhead_picture",
    "feather bench paper": "feather_sglang.bench.paper.picture",
    "feather bench serve": "feather_sglang.bench.picture",
    "feather bench tie": "feather_sglang.bench.tie_picture",
    "feather simulate": "feather_sglang.bench.simulate_picture",
}
"""By the name of a schema: what draws it."""
_MOST_ROWS = 400
_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; --accent: #1b7f79; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 72rem; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { border-top: 2px solid var(--accent); font-size: 1.2rem; padding-top: .8rem; }
nav ul, dl { padding: 0; } nav li { list-style: none; }
code, pre { font: .85rem/1.4 ui-monospace, monospace; }
pre { background: var(--soft); overflow-wrap: anywhere; padding: .6rem; white-space: pre-wrap; }
dl { display: grid; gap: 0 1rem; grid-template-columns: max-content 1fr; } dt { color: #777; } dd { margin: 0; }
.table { -webkit-overflow-scrolling: touch; max-height: 80vh; max-width: 100%; overflow: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: right; }
th:first-child, td:first-child { background: Canvas; left: 0; position: sticky; text-align: left; }
th { position: sticky; top: 0; background: Canvas; } th:first-child { z-index: 1; }
figure { margin: 1rem 0; overflow-x: auto; } img { background: #fff; height: auto; max-width: 100%; min-width: 38rem; }
summary { cursor: pointer; }
"""


def main(argv: list[str]) -> int:
    """Write the page.

    :raises UsageError: if a file is not the JSON of a bench or simulation, or the page cannot be written.
    """
    options = _parser().parse_args(argv)
    reports = [(path, _read(path)) for path in options.files]
    page = render(reports)
    try:
        options.output.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"-o {options.output} cannot be written ({error.strerror}): give a file in a folder") from None
    print(f"wrote {options.output}: {len(reports)} reports, {len(page) / 1e6:.1f} MB")
    return 0


def render(reports: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    """The page.

    :param reports: each with the file that it is from.
    """
    contents = "".join(
        f'<li><a href="#r{n}">{_text(_title(report))}</a> <small>{_text(path.name)}</small></li>'
        for n, (path, report) in enumerate(reports)
    )
    sections = "".join(_section(n, path, report) for n, (path, report) in enumerate(reports))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_HEADING}</title><style>{_STYLE}</style></head><body><h1>{_HEADING}</h1>"
        f"<nav><ul>{contents}</ul></nav>{sections}</body></html>\n"
    )


def _section(number: int, path: Path, report: Mapping[str, Any]) -> str:
    parts = [f'<section id="r{number}"><h2>{_text(_title(report))}</h2>']
    if "workload" in report:
        parts.append(f"<p>{_text(report['workload'])}</p>")
    profile = report.get("profile")
    if isinstance(profile, Mapping):
        parts.append(f"<p><strong>Modelled, not measured</strong>: {_text(profile.get('what', ''))}</p>")
    parts.append(f"<pre>{_text(report['command'])}</pre>")
    parts += [
        f'<figure><img alt="{_text(_title(report))}" src="data:image/png;base64,{b64encode(png).decode()}"></figure>'
        for png in _pictures(report)
    ]
    facts = {**report["machine"], **report["versions"]}
    parts.append(
        "<dl>" + "".join(f"<dt>{_text(k)}</dt><dd>{_text(_plain(v))}</dd>" for k, v in facts.items()) + "</dl>"
    )
    for key in ("ratio_to_fcfs", "p99_ttft_ratio_to_fcfs"):
        if isinstance(report.get(key), Mapping) and report[key]:
            parts.append(f"<h3>{_text(key)}</h3>" + _table([dict(report[key])]))
    parts.append("<h3>rows</h3>" + _table(report["rows"]))
    if isinstance(profile, Mapping) and profile.get("constants"):
        parts.append(f"<details><summary>constants of the profile</summary>{_table(profile['constants'])}</details>")
    scalars = {k: v for k, v in report.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    if scalars:
        parts.append(f"<h3>figures</h3>{_table([scalars])}")
    parts.append(f"<p><small>from {_text(path.name)}</small></p></section>")
    return "".join(parts)


def _pictures(report: Mapping[str, Any]) -> list[bytes]:
    """As the bench itself draws them; none if it draws none."""
    module = _PICTURES.get(_title(report))
    if module is None:
        return []
    require_matplotlib()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture.png"
        try:
            import_module(module).draw(report, [path], subtitle=str(report.get("workload", "")))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"a report of {_title(report)} lacks what its picture needs ({what}): write it again with this version"
            ) from None
        return [path.read_bytes()]


def _table(rows: Sequence[Any]) -> str:
    """Rows of like things; what is nested becomes columns of its own."""
    flat = [_flat(row) for row in rows[:_MOST_ROWS]]
    names = list(dict.fromkeys(name for row in flat for name in row))
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_text(_plain(row.get(n)))}</td>" for n in names) + "</tr>" for row in flat)
    more = f"<p>{len(rows) - _MOST_ROWS} more rows are in the file.</p>" if len(rows) > _MOST_ROWS else ""
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="table" tabindex="0">{table}</div>{more}'


def _flat(row: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(row, Mapping):
        return {prefix or "value": row}
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name} ")
        elif not isinstance(value, list) or len(value) <= 8:
            found[f"{prefix}{name}"] = value
    return found


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else json.dumps(value)


def _title(report: Mapping[str, Any]) -> str:
    return str(report["schema"]["name"])


def _text(text: object) -> str:
    return html.escape(str(text))


def _read(path: Path) -> Mapping[str, Any]:
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): give a file that --json wrote") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}): give a file that --json wrote") from None
    missing = [key for key in _REQUIRED if not isinstance(report, dict) or key not in report]
    if missing or not isinstance(report["schema"], dict) or not isinstance(report["rows"], list):
        lacks = f"it has no {', '.join(missing)}" if missing else "its schema or rows are not as expected"
        raise UsageError(f"{path} is not the JSON of a bench or simulation ({lacks}): give a file that --json wrote")
    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="feather report",
        allow_abbrev=False,
        description="Make one page of HTML, with pictures, machine, versions and commands, from the JSON files that "
        "`feather bench KIND --json` and `feather simulate --json` write.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.json")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PAGE.html", help="the page to write")
    return parser
