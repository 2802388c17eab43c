"""The architecture page shows the packages as they are and names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.package_diagram import DIAGRAMS, PAGE, edges, imported_modules, reduce, with_diagrams

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "millrace"


def test_the_page_has_the_diagrams_of_today() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_diagrams(page, ROOT / "src") == page, "run tools/package_diagram.py --write"


def test_each_diagram_stands_at_its_own_place() -> None:
    page = "".join(f"<!-- diagram: {name} -->\nnone yet\n<!-- end -->\n" for name in DIAGRAMS)
    drawn = with_diagrams(page, ROOT / "src").split("<!-- end -->")
    assert "engine --> maintenance" in drawn[0]
    assert "decide --> " in drawn[1]
    assert "sqs --> aws" in drawn[2]


@pytest.mark.parametrize("package", DIAGRAMS.values())
def test_packages_are_not_without_imports(package: str) -> None:
    assert len(edges(package, ROOT / "src")) > 5


def test_an_import_that_a_longer_path_implies_is_left_out() -> None:
    found = {("a", "b"), ("b", "c"), ("a", "c"), ("d", "a")}
    assert reduce(found) == {("a", "b"), ("b", "c"), ("d", "a")}


def test_imports_of_modules_and_of_names_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("from m.b import c\nfrom m.b.d import E\nimport m.f\nimport other\n")
    known = {"m.b", "m.b.c", "m.b.d", "m.f"}
    assert imported_modules(file, known) == {"m.b.c", "m.b.d", "m.f"}


def test_files_that_the_page_names_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w/.])((?:\w+/)+\w+\.py)\b", page))
    assert len(named) > 60
    missing = [name for name in named if not (SOURCE / name).is_file() | (ROOT / name).is_file()]
    assert not missing, missing


def test_what_the_page_names_in_a_file_is_defined_there() -> None:
    page = PAGE.read_text(encoding="utf-8")
    pairs = re.findall(r"`([\w/]+\.py)`: `(\w+)`", page)
    assert len(pairs) > 20
    missing = [
        f"{file}: {name}"
        for file, name in pairs
        if not re.search(
            rf"^\s*(?:class|def|async def) {name}\b",
            (SOURCE / file).read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    ]
    assert not missing, missing


def test_modules_in_the_tables_of_packages_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    missing = []
    rows = re.findall(r"^\| `((?:server|core)/\w+)` \| (.+) \|$", page, re.MULTILINE)
    rows += re.findall(
        r"^\| `(pipeline|sinks|spark|store|wal|journal)` \| ([^|]+) \|", page, re.MULTILINE
    )
    assert len(rows) > 15
    for row in rows:
        for name in re.findall(r"`(\w+)`", row[1]):
            path = SOURCE / row[0] / name
            if not (path.with_suffix(".py").is_file() or path.is_dir()):
                missing.append(f"{row[0]}/{name}")
    assert not missing, missing
