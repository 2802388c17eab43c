"""Values of rows as text."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Invalid
from millrace.sinks.wording import check_template, fill, to_bytes, to_text, values_in


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
    assert values_in(name, "x.{id}:{name}.y") == [b"7", b"a.b"]
    assert values_in(b"xx7", "x.{id}") is None
    assert fill("{id}", {"id": "50%:x"}) == b"50%:x", "one column stands as it is"
    assert values_in(b"50%:x", "{id}") == [b"50%:x"]


@given(st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4)), min_size=2, max_size=2))
def test_no_two_keys_have_one_name(keys: list[tuple[bytes, bytes]]) -> None:
    for template in ("{a}:{b}", "a{a}.-{b}:"):
        names = [fill(template, {"a": a, "b": b}) for a, b in keys]
        assert (names[0] == names[1]) == (keys[0] == keys[1])
        assert [values_in(name, template) for name in names] == [list(key) for key in keys]


def test_what_parts_columns_is_written_otherwise_in_them() -> None:
    assert fill("{a}:{b}", {"a": "x:y", "b": "z%"}) == b"x%3Ay:z%25"


def test_a_key_that_is_null_names_nothing() -> None:
    with pytest.raises(Invalid, match="'id' of the key is null") as refused:
        fill("{id}", {"id": None})
    assert refused.value.field == "key"


@pytest.mark.parametrize("template", ["x{a}{b}", "{a}%{b}"])
def test_two_columns_are_parted(template: str) -> None:
    with pytest.raises(Invalid, match="nothing parts"):
        check_template(template, ["a", "b"], "name")


@pytest.mark.parametrize("template", ["fixed", "{id}", "{id}{name}{other}", "{id}{name}{id}"])
def test_a_template_names_the_key(template: str) -> None:
    with pytest.raises(Invalid, match="name the columns of the key"):
        check_template(template, ["id", "name"], "name")
