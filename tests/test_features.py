"""Every feature that has a letter has a test with that letter in its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "features.md"
ROW = re.compile(r"^\| ([A-Z]\d+) \| .+ \| \[`(\w+)`\]\(\.\./tests/(.+)\) \|$", re.MULTILINE)
NAMED = {letter: (name, path) for letter, name, path in ROW.findall(PAGE.read_text("utf-8"))}


def _letters(initial: str, *numbers: int) -> list[str]:
    return [f"{initial}{number}" for number in numbers]


IN_SCOPE = [
    *_letters("K", *range(1, 7), 10, 11),
    *_letters("D", *range(1, 9)),
    *_letters("A", 1, 2, 3, 4, 5, 6, 8),
    *_letters("Q", *range(1, 7)),
    *_letters("R", *range(1, 10)),
]


def test_the_page_names_each_letter() -> None:
    assert sorted(NAMED) == sorted(IN_SCOPE)


@pytest.mark.parametrize("letter", IN_SCOPE)
def test_a_test_with_the_letter_is_there(letter: str) -> None:
    name, path = NAMED[letter]
    assert f"{letter.lower()}_" in name
    file = TESTS / path
    if file.suffix == ".txt":
        assert file.stem == name
        assert file.exists()
    else:
        assert f"def {name}(" in file.read_text("utf-8")
