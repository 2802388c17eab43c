"""Every letter of the designs has a row in `docs/features.md`; the tests named there exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "features.md"
LETTERS = {"K": 11, "D": 8, "A": 8, "Q": 11, "R": 10}
"""How many features each design has."""

ON_ONE_NODE = ("works", "partly", "not applicable")
WITH_REPLICAS = ("not built", "needs a cluster")
NONE = "—"

LINK = re.compile(r"\[`(\w+)`\]\(\.\./(tests/[\w/.]+)\)")


class Row(NamedTuple):
    """A feature, as the page has it."""

    letter: str
    what: str
    one_node: str
    replicas: str
    strongest: str
    by_name: str


def _rows() -> list[Row]:
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [Row(*(part.strip() for part in line[1:-1].split(" | "))) for line in lines[1:]]


ROWS = _rows()
_each = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.letter)


def test_each_letter_is_there_once() -> None:
    every = [f"{design}{at}" for design, count in LETTERS.items() for at in range(1, count + 1)]
    assert [row.letter for row in ROWS] == every


@_each
def test_its_state_is_one_of_the_words(row: Row) -> None:
    found = re.fullmatch(r"([^:;]+)(?:[:;] (.+))?", row.one_node)
    assert found is not None
    state, rest = found.groups()
    assert state in ON_ONE_NODE
    assert state == "works" or rest, "what is missing, or why"
    assert row.replicas.partition(":")[0] in WITH_REPLICAS
    assert row.what


@_each
def test_its_tests_exist(row: Row) -> None:
    # A feature that one node has nothing of has no test; every other one has.
    assert (row.strongest == NONE) == row.one_node.startswith("not applicable")
    if row.one_node == "works":
        # By its letter it is found, too.
        assert row.by_name != NONE
    for cell in (row.strongest, row.by_name):
        if cell != NONE:
            _see_test(cell)
    if row.by_name != NONE:
        name = _see_test(row.by_name)
        assert f"{row.letter.lower()}_" in name


@_each
def test_what_is_named_beside_it_exists(row: Row) -> None:
    for name in re.findall(r"`(test_\w+)`", row.one_node + row.replicas):
        places = [*(ROOT / "tests").glob("**/test_*.py")]
        assert any(f"def {name}(" in place.read_text("utf-8") for place in places), name


def _see_test(cell: str) -> str:
    """See that a test is where the link says; returns its name."""
    found = LINK.fullmatch(cell)
    assert found is not None, f"{cell} is no link to a test"
    name, path = found.groups()
    file = ROOT / path
    if file.suffix == ".txt":
        assert file.stem == name
        assert file.exists()
        return name
    assert file.name.startswith("test_")
    is_there = rf"^(async )?def {name}\(|^class {name}\b|^{name} = "
    assert re.search(is_there, file.read_text("utf-8"), re.MULTILINE), f"{name} is not in {path}"
    return name
