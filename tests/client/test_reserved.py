"""Headers that the server alone writes: found in columns and blocks, and left out of copies."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from millrace.client.reserved import (
    check_column,
    in_block,
    plain_column,
    plain_headers,
    successor_headers,
)
from millrace.core.block import SCHEMA, Block
from millrace.core.column import Array
from millrace.core.model import Headers, Message
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
    block = Block.of_messages([Message(b"1"), Message(b"2", None, tuple(fine))])
    assert not in_block(block)
    for row in COPIED:
        forged = row is not None and PLAIN[COPIED.index(row)] != row
        block = Block.of_messages([Message(b"1"), Message(b"2", None, tuple(row or ()))])
        assert in_block(block) == forged


@pytest.mark.parametrize("text", [pa.utf8(), pa.large_utf8(), pa.binary()])
def test_sec_04_a_column_of_any_text_is_looked_at(text: pa.DataType) -> None:
    kind = pa.list_(pa.struct([("name", text), ("value", pa.binary())]))
    for row in ([("aws.topic", b"1")], [("fine", b"1"), ("millrace-ttl-ms", b"2")]):
        rows: list[list[tuple[str, bytes]] | None] = [None, [("fine", b"")], row]
        with pytest.raises(Invalid, match="header"):
            check_column(pa.chunked_array([column([], kind), column(rows, kind)]))
    check_column(pa.chunked_array([column([[("colour", b"red")], None], kind)]))
