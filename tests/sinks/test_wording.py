"""Values of rows as text."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from millrace.errors import Invalid
from millrace.sinks.wording import check_template, fill, pattern, to_bytes, to_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, b""),
        (b"\xff", b"\xff"),
        ("ü", "ü".encode()),
        (7, b"7"),
        (True, b"true"),
        (1.5, b"1.5"),
        (Decimal("1.50"), b"1.50"),
        (datetime(2026, 1, 2, tzinfo=UTC), b"2026-01-02T00:00:00Z"),
        (["a", 1], b'["a",1]'),
    ],
)
def test_a_value_as_bytes(value: object, text: bytes) -> None:
    assert to_bytes(value) == text


def test_bytes_that_are_no_text() -> None:
    assert to_text(b"abc") == "abc"
    assert to_text(b"\xff\x00") == "/wA="


def test_a_name_and_back() -> None:
    row = {"id": 7, "name": "a.b"}
    name = fill("x.{id}:{name}.y", row)
    assert name == b"x.7:a.b.y"
    found = pattern("x.{id}:{name}.y").fullmatch(name)
    assert found is not None
    assert found.groups() == (b"7", b"a.b")
    assert pattern("x.{id}").fullmatch(b"xx7") is None


@pytest.mark.parametrize("template", ["fixed", "{id}", "{id}{name}{other}", "{id}{name}{id}"])
def test_a_template_names_the_key(template: str) -> None:
    with pytest.raises(Invalid, match="name the columns of the key"):
        check_template(template, ["id", "name"], "name")
