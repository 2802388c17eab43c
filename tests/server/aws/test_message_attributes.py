"""Texts of which the bytes of a request tell that XML can hold them."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Refused
from millrace.server.aws.message_attributes import are_seen, see_text

ODD = st.text() | st.text("ab\x00\x08\t\n\x0b\x1f\x7f\ufffe\uffff\\u0")


def is_held(text: str) -> bool:
    try:
        see_text(text.encode())
    except Refused:
        return False
    return True


@given(text=ODD, is_ascii=st.booleans())
def test_what_is_seen_is_held(text: str, *, is_ascii: bool) -> None:
    raw = json.dumps({"MessageBody": text}, ensure_ascii=is_ascii).encode()
    assert is_held(text) or not are_seen(raw)


@given(st.text(st.characters(max_codepoint=126), min_size=1))
def test_what_json_does_not_take_as_it_is_must_be_escaped(text: str) -> None:
    """Nothing that XML cannot hold stands in JSON that was read, unless it is escaped."""
    raw = b'{"MessageBody":"' + text.encode() + b'"}'
    try:
        body = msgspec.json.decode(raw, type=dict[str, str]).get("MessageBody", "")
    except msgspec.DecodeError:
        return
    assert is_held(body) or not are_seen(raw)


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        (b'{"MessageBody":"plain\x7f"}', True),
        (b'{"MessageBody":"\\u0001"}', False),
        (b'{"MessageBody":"\\b"}', False),
        ('{"MessageBody":"\ufffe"}'.encode(), False),
        (bytearray(b'{"MessageBody":"plain"}'), False),
    ],
)
def test_nothing_is_escaped_and_all_is_ascii(raw: bytes, *, seen: bool) -> None:
    assert are_seen(raw) is seen
