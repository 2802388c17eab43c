"""Headers that only the server writes: found in columns and blocks, and left out of copies."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from millrace.client.message import make_rows
from millrace.client.reserved import (
    check_names,
    plain_column,
    plain_headers,
    reserved_name,
    successor_headers,
)
from millrace.core.format.block import SCHEMA, Block
from millrace.core.format.column import Array
from millrace.core.model import Headers, NewMessage
from millrace.errors import Invalid

HEADERS = SCHEMA.field("headers").type
COPIED: list[list[tuple[str, bytes]] | None] = [
    None,
    [],
    [("aws.topic", b"1"), ("colour", b"red"), ("millrace-dead-queue", b"2")],
    [("colour", b"blue"), ("colour", b"green")],
    [("aws.id", b"3")],
    [("millrace-group", b"g"), ("aws.sender", b"4")],
]
PLAIN = [[], [], [("colour", b"red")], COPIED[3], [], [("millrace-group", b"g")]]


def column(rows: list[list[tuple[str, bytes]] | None], kind: pa.DataType = HEADERS) -> Array:
    made = [
        None if row is None else [{"name": name, "value": value} for name, value in row]
        for row in rows
    ]
    return pa.array(made, kind)


def pairs(found: Any) -> list[list[tuple[str, bytes]]]:
    return [[(one["name"], one["value"]) for one in row or []] for row in found.to_pylist()]


def test_sec_04_copies_leave_behind_what_the_server_wrote() -> None:
    made = plain_column(column(COPIED))
    made.validate(full=True)
    assert made.type == HEADERS
    assert pairs(made) == PLAIN
    assert pairs(plain_column(column(COPIED).slice(2, 3))) == PLAIN[2:5]
    rows: list[Headers] = [tuple(row or ()) for row in COPIED]
    assert [list(plain_headers(row)) for row in rows] == PLAIN


def test_copies_of_plain_headers_are_the_same_column() -> None:
    for rows in ([], [None], [[("colour", b"red")], None]):
        made = column(list(rows))
        assert plain_column(made) is made


def test_a_successor_keeps_what_tells_of_a_death() -> None:
    told: Headers = (("aws.topic", b"1"), ("millrace-dead-queue", b"2"), ("colour", b"3"))
    assert successor_headers(told) == told[1:]


def test_sec_04_a_block_is_looked_at_as_a_whole() -> None:
    fine = [("aws", b"x"), ("paws.topic", b"y"), ("law", b"s."), ("not-millrace-dead-x", b"z")]
    block = Block.of_messages([NewMessage(b"1"), NewMessage(b"2", None, tuple(fine))])
    assert reserved_name(block) is None
    for row in COPIED:
        forged = [name for name, _ in row or () if name.startswith(("aws.", "millrace-dead-"))]
        messages = (NewMessage(b"1"), NewMessage(b"2", None, tuple(row or ())))
        expected = forged[0] if forged else None
        assert reserved_name(Block.of_messages(list(messages))) == expected
        assert reserved_name(messages) == expected


@pytest.mark.parametrize("text", [pa.utf8(), pa.large_utf8(), pa.binary()])
def test_sec_04_names_in_a_column_of_any_text_are_looked_at(text: pa.DataType) -> None:
    kind = pa.list_(pa.struct([("name", text), ("value", pa.binary())]))

    def publish(rows: list[list[tuple[str, bytes]] | None]) -> None:
        chunks = pa.chunked_array([column([], kind), column(rows, kind)])
        table = pa.table({"value": pa.array([b"x"] * len(rows), pa.binary()), "headers": chunks})
        make_rows(table, check_names=check_names)

    for row in ([("aws.topic", b"1")], [("fine", b"1"), ("millrace-ttl-ms", b"2")]):
        with pytest.raises(Invalid, match="header"):
            publish([None, [("fine", b"")], row])
    publish([[("colour", b"red")], None])


def test_a_column_of_another_type_is_not_taken_for_plain() -> None:
    with pytest.raises(TypeError):
        plain_column(pa.array(["aws.topic"]))
