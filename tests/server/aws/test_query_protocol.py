"""The older protocol: forms are read as JSON is, and answers are written so that botocore reads
them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace import limits
from millrace.server.aws.fault import Fault
from millrace.server.aws.message_attributes import AttributeValue
from millrace.server.aws.query_protocol import (
    read_fields,
    read_form,
    tree_of,
    write_xml,
)
from millrace.server.sqs.schemas import (
    NAMED,
    ReceiveMessageIn,
    ReceiveMessageOut,
    SendEntry,
    SendMessageBatchIn,
    SqsMessageOut,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


def send_batch(fields: dict[str, str]) -> SendMessageBatchIn:
    tree = tree_of(read_fields(urlencode(fields)))
    return read_form(tree, SendMessageBatchIn, NAMED, "SendMessageBatch")


def test_lists_and_maps_are_read_by_their_own_names() -> None:
    found = send_batch(
        {
            "Action": "SendMessageBatch",
            "Version": "2012-11-05",
            "QueueUrl": "http://h/000000000000/q",
            "SendMessageBatchRequestEntry.2.Id": "b",
            "SendMessageBatchRequestEntry.2.MessageBody": "two",
            "SendMessageBatchRequestEntry.10.Id": "c",
            "SendMessageBatchRequestEntry.10.MessageBody": "ten",
            "SendMessageBatchRequestEntry.1.Id": "a",
            "SendMessageBatchRequestEntry.1.MessageBody": "one",
            "SendMessageBatchRequestEntry.1.DelaySeconds": "5",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Name": "n",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType": "Binary",
            "SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.BinaryValue": "AP8=",
        }
    )
    assert found.entries == [
        SendEntry(
            "one",
            5,
            {"n": AttributeValue(binary_value=b"\x00\xff", data_type="Binary")},
            id="a",
        ),
        SendEntry("two", id="b"),
        SendEntry("ten", id="c"),
    ]


def test_a_list_of_one_needs_no_number() -> None:
    tree = tree_of({"QueueUrl": "q", "AttributeName": "All"})
    assert read_form(tree, ReceiveMessageIn, NAMED, "ReceiveMessage").attribute_names == ["All"]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"QueueUrl": "q", "Colour": "red"}, msgspec.ValidationError),
        ({"QueueUrl": "q", "MaxNumberOfMessages": "many"}, msgspec.ValidationError),
        ({"MaxNumberOfMessages": "1"}, msgspec.ValidationError),
        ({"QueueUrl": "q", "AttributeName.x": "All"}, Fault),
        ({"QueueUrl": "q", "QueueUrl.a": "b"}, Fault),
        ({"QueueUrl": "q", ".".join("abcdefghi"): "b"}, Fault),
    ],
)
def test_what_is_no_call_is_refused(fields: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        read_form(tree_of(fields), ReceiveMessageIn, NAMED, "ReceiveMessage")


def test_a_field_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(Fault, match="twice"):
        read_fields("a=1&a=2")


TOKENS = ("%41", "%c3%a4", "%C3", "%", "%4", "%zz", "%ff", "%26", "%3D", "+", "a", "=", "&", "ä")


@given(
    st.lists(st.sampled_from(TOKENS), max_size=12).map("".join),
    st.integers(limits.AWS_FORM_STEP_BYTES - 12, limits.AWS_FORM_STEP_BYTES),
)
def test_a_long_form_is_read_as_a_short_one(text: str, before: int) -> None:
    """The escapes lie where the steps end in which a long form is decoded."""
    long = "b" * before + text
    expected: dict[str, str] | None = None
    with suppress(ValueError):
        pairs = parse_qsl(long, keep_blank_values=True, errors="strict")
        # One that stands there twice is refused.
        expected = dict(pairs) if len(dict(pairs)) == len(pairs) else None
    found: dict[str, str] | None = None
    with suppress(Fault):
        found = read_fields(long)
    assert found == expected


texts = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"),
    min_size=1,
    max_size=20,
)


@given(st.dictionaries(texts, texts, max_size=4), texts, st.binary(min_size=1, max_size=20))
def test_xml_holds_any_text(attributes: dict[str, str], body: str, data: bytes) -> None:
    from xml.etree.ElementTree import fromstring

    values = {"b": AttributeValue(binary_value=data, data_type="Binary")}
    message = SqsMessageOut("id", "receipt", "md5", f"{body}\r\n", attributes, "md5", values)
    text = write_xml(ReceiveMessageOut([message]), NAMED, "ReceiveMessage")
    found = fromstring(f"<Result>{text}</Result>")
    [element] = found.findall("Message")
    assert element.findtext("Body") == f"{body}\r\n"
    assert _pairs(element) == attributes
    assert element.findtext("MessageAttribute/Value/DataType") == "Binary"


def _pairs(element: Element) -> dict[str, str]:
    return {
        one.findtext("Name") or "": one.findtext("Value") or ""
        for one in element.findall("Attribute")
    }
