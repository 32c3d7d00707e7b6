"""``feather report``: one page that needs nothing else, and what it says of files that it cannot use."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from feather_sglang.bench.machine import machine, versions
from feather_sglang.cli import main

SAMPLE = Path(__file__).parents[2] / "bench" / "data" / "mooncake" / "conversation_head.jsonl"


class Page(HTMLParser):
    """Checks that elements are closed in order; keeps links, pictures and text."""

    VOID = ("meta", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A bench that the page knows nothing of."""
    path = tmp_path / "other.json"
    report = {"schema": {"name": "feather bench <other>", "version": 1}, "command": "feather bench other --x 'a b'"}
    rows = [{"name": "one", "deep": {"p50": 1.23456, "p99": None}, "list": list(range(100))}, {"name": "<b>"}]
    path.write_text(json.dumps(report | {"machine": machine(), "versions": versions(), "rows": rows, "figure": 0.5}))
    return path


def test_a_page(tmp_path: Path, other: Path) -> None:
    simulated, target = tmp_path / "s.json", tmp_path / "page.html"
    assert main.main(["simulate", str(SAMPLE), "--limit", "40", "--json", str(simulated)]) == 0
    assert main.main(["report", str(simulated), str(other), "-o", str(target)]) == 0
    text = target.read_text()
    page = Page(text)
    assert not re.search(r'(src|href)="(?!data:|#)', text), "nothing is fetched"
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.attributes
    pictures = [attrs["src"] for tag, attrs in page.attributes if tag == "img"]
    assert len(pictures) == 1, "of the simulation"
    assert pictures[0] is not None
    assert pictures[0].startswith("data:image/png;base64,iVBOR")
    tables = [n for n, (tag, _) in enumerate(page.attributes) if tag == "table"]
    assert all(page.attributes[n - 1][1].get("class") == "table" for n in tables), "each scrolls in itself"
    for said in (
        *("feather simulate", f"--limit 40 --json {simulated}", "Modelled, not measured", "(Mooncake)"),
        *("feather bench other --x 'a b'", "feather bench <other>", "<b>", "deep p50", "1.235", machine()["cpu"]),
        versions()["sglang"],
    ):
        assert said in page.text, said


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot be read (No such file or directory)"),
        ("{", "is not JSON"),
        ("[]", "is not the JSON of a bench or simulation (it has no schema, command, machine, versions, rows)"),
        ('{"schema": 1, "command": "", "machine": {}, "versions": {}, "rows": []}', "not as expected"),
        (
            '{"schema": {"name": "feather simulate"}, "command": "", "machine": {}, "versions": {}, "rows": [{}]}',
            "lacks what its picture needs (KeyError: 'policy')",
        ),
    ],
)
def test_bad_files(tmp_path: Path, content: str | None, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_text(content)
    assert main.main(["report", str(path), "-o", str(tmp_path / "page.html")]) == 2
    err = capsys.readouterr().err
    assert complaint in err
    assert err.count("\n") == 1


def test_a_page_that_cannot_be_written(other: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["report", str(other), "-o", "/none/such/page.html"]) == 2
    assert "-o /none/such/page.html cannot be written" in capsys.readouterr().err
