"""The bodies of Dynamiq's routes, whatever they are."""

from __future__ import annotations

from base64 import b64decode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.client.settings import QueueSettings
from millrace.core import bounds
from millrace.core.format.message_id import IDS
from millrace.core.spec import QueueSpec
from millrace.errors import Invalid, Refused, TooLarge
from millrace.server.dynamiq.schemas import (
    VISIBILITY_MS,
    VISIBILITY_NOTE,
    batch_in,
    id_in,
    ids_in,
    message_out,
    queue_out,
    settings_in,
    settings_of,
    visibility_ms,
)


@given(st.binary())
def test_a_body_can_be_had_as_it_was(body: bytes) -> None:
    out = message_out(7, body)
    exact = out.body.encode() if out.body_base64 is None else b64decode(out.body_base64)
    assert (out.id, exact) == ("7", body)


@given(st.integers(0, IDS - 1))
def test_an_id_is_read_as_it_is_written(number: int) -> None:
    assert id_in(str(number)) == number
    assert ids_in(f"x,{number},,{number} ,{IDS}") == [number, number]


@given(st.text())
def test_any_other_text_is_no_id_and_no_size(text: str) -> None:
    found = id_in(text)
    assert found is None or str(found) == text.lstrip("0") or found == 0
    if found:
        assert 1 <= batch_in(text) <= limits.LEASE_MESSAGES_MAX
    else:
        with pytest.raises(Invalid, match="the size of a batch") as refused:
            batch_in(text)
        assert refused.value.field == "messages"


ANY = st.one_of(st.none(), st.booleans(), st.integers(-5, 300), st.floats(), st.text(max_size=3))
NAMES = (
    "visibility_timeout",
    "min_partitions",
    "max_partitions",
    "max_partition_age",
    "compressed_messages",
)


def _taken(body: bytes) -> QueueSettings | Refused:
    try:
        return settings_of(settings_in(body), QueueSpec())
    except (Invalid, TooLarge) as error:
        return error


@given(
    st.one_of(st.binary(), st.dictionaries(st.sampled_from(NAMES), ANY).map(msgspec.json.encode))
)
def test_settings_are_taken_or_refused_by_a_name(body: bytes) -> None:
    found = _taken(body)
    if isinstance(found, Refused):
        assert found.field
        return
    least, most = found.get("partitions_min") or 1, found.get("partitions_max") or 10
    assert 1 <= least <= most <= bounds.PARTITIONS_MAX
    notes = tuple((found.get("notes") or {}).items())
    assert 1 <= visibility_ms(QueueSpec(notes=notes)) <= limits.LEASE_MS_MAX


def test_a_note_that_somebody_else_wrote_locks_nothing_for_ever() -> None:
    for text in ("x", "0", "-5", "1e9", ""):
        assert visibility_ms(QueueSpec(notes=((VISIBILITY_NOTE, text),))) == VISIBILITY_MS
    large = QueueSpec(notes=((VISIBILITY_NOTE, "9" * 18),))
    assert visibility_ms(large) == limits.LEASE_MS_MAX
    assert queue_out(QueueSpec(notes=((VISIBILITY_NOTE, "1500"),)), 1).visibility_timeout == 1.5
