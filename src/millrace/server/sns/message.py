"""Validation of messages to publish, and their conversion to stored messages.

The text becomes the body; attributes become headers, in the same form as those of SQS. An array
attribute becomes one header for each element, so that filters match elements one by one.

Rule: everything is validated before anything is published.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import NamedTuple
from uuid import uuid4

import msgspec

from millrace import limits
from millrace.client.message import Message
from millrace.core.model import GROUP_HEADER
from millrace.core.publishing.life_headers import SEQ_ROOM, TOPIC_SEQ
from millrace.server.aws.message_attributes import (
    DEDUP,
    OWN_PREFIXES,
    TRACE,
    TYPES,
)
from millrace.server.aws.topic_headers import (
    ARRAYS,
    BODY_FOR,
    ID,
    SUBJECT,
    TIME,
    TOPIC,
    VERSION,
)
from millrace.server.clock import now_ms
from millrace.server.sns.faults import failed_validation, invalid, invalid_value
from millrace.server.sns.schemas import SnsAttributeValue, SnsMessageIn

Pairs = list[tuple[str, bytes]]

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SUBJECT = re.compile(rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{limits.SNS_SUBJECT_CHARS_MAX}}}")
"""Matches neither control characters nor line breaks, including those of Unicode."""

_ID = re.compile(rf"[\x21-\x7e]{{1,{limits.SNS_ID_CHARS_MAX}}}")
_ARRAY = "String.Array"


class TopicPublishSettings(NamedTuple):
    """The settings of a topic that publishing needs."""

    arn: str
    is_fifo: bool
    dedup_by_content: bool
    dedup_by_group: bool
    version: str
    """The signature version."""
    bytes_max: int = limits.SNS_MESSAGE_BYTES
    """Limit of a message, and of all messages of a batch together."""


class PublishableMessage(NamedTuple):
    """A validated message, ready to be published."""

    id: str
    message: Message


def publishable(
    told: SnsMessageIn,
    topic: TopicPublishSettings,
    position: int | None = None,
    *,
    trace: bytes | None = None,
) -> PublishableMessage:
    """Validate a message of a request and convert it for publishing.

    `position` is that of the entry in its batch, from 1; `trace` is the trace header of the
    request.

    Raises:
        Fault: a field is missing or has an invalid value.
    """
    if told.subject is not None and _SUBJECT.fullmatch(told.subject) is None:
        raise invalid("Subject")
    if not told.message:
        raise invalid("Empty message")
    pairs = _attributes(told.message_attributes, position)
    if size_of(told) > topic.bytes_max:
        raise invalid("Message too long")
    body, others = _bodies(told)
    id = str(uuid4())
    time = b"%d" % now_ms()
    pairs += [(TOPIC, topic.arn.encode()), (ID, id.encode()), (TIME, time), *others]
    if told.subject is not None:
        pairs.append((SUBJECT, told.subject.encode()))
    if trace is not None:
        pairs.append((TRACE, trace))
    if topic.version != "1":
        pairs.append((VERSION, topic.version.encode()))
    dedup = _turns(told, topic, pairs)
    return PublishableMessage(id, Message(body, headers=tuple(pairs), dedup=dedup))


def size_of(told: SnsMessageIn) -> int:
    """Return the size of a message with its attributes in bytes, as SNS counts it."""
    return len(told.message.encode()) + sum(
        len(name.encode())
        + len(value.data_type.encode())
        + len((value.string_value or "").encode())
        + len(value.binary_value or b"")
        for name, value in told.message_attributes.items()
    )


def _bodies(told: SnsMessageIn) -> tuple[bytes, Pairs]:
    """Return the text for queues, and headers with the differing texts of other protocols."""
    if told.message_structure not in ("", "json"):
        raise invalid("MessageStructure")
    if not told.message_structure:
        return told.message.encode(), []
    try:
        found = msgspec.json.decode(told.message)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid("Message Structure - JSON message body failed to parse") from error
    texts = found if isinstance(found, dict) else {}
    default = texts.get("default")
    if not isinstance(default, str):
        raise invalid("Message Structure - No default entry in JSON message body")
    own = texts.get("sqs")
    body = own if isinstance(own, str) else default
    others: Pairs = []
    for protocol, header in BODY_FOR.items():
        text = texts.get(protocol)
        text = text if isinstance(text, str) else default
        if text != body:
            others.append((header, text.encode()))
    return body.encode(), others


def _turns(told: SnsMessageIn, topic: TopicPublishSettings, pairs: Pairs) -> str | None:
    """Append the headers of group and deduplication id; return the deduplication key of the
    message.
    """
    group, dedup = told.message_group_id, told.message_deduplication_id
    if not topic.is_fifo and dedup:
        raise invalid(
            "MessageDeduplicationId Reason: The request includes MessageDeduplicationId parameter "
            "that is not valid for this topic type"
        )
    if topic.is_fifo and not group:
        raise invalid("The MessageGroupId parameter is required for FIFO topics")
    for name, text in (("MessageGroupId", group), ("MessageDeduplicationId", dedup)):
        if text and _ID.fullmatch(text) is None:
            raise invalid(
                f"{name} Reason: {name} can only include alphanumeric and punctuation characters. "
                f"1 to {limits.SNS_ID_CHARS_MAX} in length"
            )
    if group:
        pairs.append((GROUP_HEADER, group.encode()))
    if not topic.is_fifo:
        return None
    if not dedup:
        if not topic.dedup_by_content:
            raise invalid(
                "The topic should either have ContentBasedDeduplication enabled or "
                "MessageDeduplicationId provided explicitly"
            )
        dedup = sha256(told.message.encode()).hexdigest()
    pairs += [(DEDUP, dedup.encode()), (TOPIC_SEQ, SEQ_ROOM)]
    return f"{group}\n{dedup}" if topic.dedup_by_group else dedup


# --- Attributes ----------------------------------------------------------------------------------


def _attributes(given: Mapping[str, SnsAttributeValue], position: int | None) -> Pairs:
    pairs: Pairs = []
    types: dict[str, str] = {}
    arrays: dict[str, str] = {}
    for name, value in given.items():
        _see_name(name)
        if not value.data_type:
            at = f"publishBatchRequestEntries.{position}.member." if position else ""
            raise failed_validation(
                f"1 validation error detected: Value null at '{at}messageAttributes.{name}.member."
                "dataType' failed to satisfy constraint: Member must not be null"
            )
        data = _value(name, value)
        if value.data_type != "String":
            types[name] = value.data_type
        elements = _elements(data) if value.data_type == _ARRAY else None
        if elements is None:
            pairs.append((name, data))
        else:
            arrays[name] = data.decode()
            pairs += [(name, element) for element in elements]
    if len(pairs) > limits.SNS_ATTRIBUTES_MAX:
        raise invalid_value(
            f"A message has up to {limits.SNS_ATTRIBUTES_MAX} attributes here, each element of an "
            f"array counted; this one has {len(pairs)}."
        )
    if types:
        pairs.append((TYPES, msgspec.json.encode(types)))
    if arrays:
        pairs.append((ARRAYS, msgspec.json.encode(arrays)))
    return pairs


def _elements(data: bytes) -> list[bytes] | None:
    """Return the elements of an array attribute as texts, without nested arrays and objects.

    A JSON string, number, boolean or null counts as an array of one element. Return None if the
    text is not JSON or is an object.
    """
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if isinstance(found, dict):
        return None
    if not isinstance(found, list):
        found = [found]
    return [
        one.encode() if isinstance(one, str) else msgspec.json.encode(one)
        for one in found
        if not isinstance(one, list | dict)
    ]


def _see_name(name: str) -> None:
    if not name or len(name) > limits.SNS_ATTRIBUTE_NAME_CHARS_MAX:
        raise invalid_value(
            "Length of message attribute name must be less than "
            f"{limits.SNS_ATTRIBUTE_NAME_CHARS_MAX} bytes."
        )
    if name.startswith("."):
        raise invalid_value("Invalid message attribute name starting with character '.' was found.")
    if name.endswith("."):
        raise invalid_value("Invalid message attribute name ending with character '.' was found.")
    for letter in name:
        if _NAME.fullmatch(letter) is None:
            raise invalid_value(
                f"Invalid non-alphanumeric character '#x{ord(letter):X}' was found in the message "
                "attribute name. Can only include alphanumeric characters, hyphens, underscores, "
                "or dots."
            )
    if ".." in name:
        raise invalid_value("Message attribute name can not have successive '.' character.")
    if name.lower().startswith(("aws.", "amazon.", *OWN_PREFIXES)):
        raise invalid_value(
            f"The message attribute name '{name}' must not start with reserved prefixes."
        )


def _value(name: str, value: SnsAttributeValue) -> bytes:
    kind = value.data_type
    found = _TYPE.fullmatch(kind)
    if found is None or len(kind) > limits.SNS_ATTRIBUTE_NAME_CHARS_MAX:
        raise invalid_value(
            f"The message attribute '{name}' has an invalid message attribute type, the set of "
            "supported type prefixes is Binary, Number, and String."
        )
    is_binary = found[1] == "Binary"
    data = value.binary_value if is_binary else value.string_value
    other = value.string_value if is_binary else value.binary_value
    if data is None and other:
        raise invalid_value(
            f"The message attribute '{name}' with type '{kind}' must use field "
            f"'{'Binary' if is_binary else 'String'}'."
        )
    if not data:
        raise invalid_value(
            f"The message attribute '{name}' must contain non-empty message attribute value for "
            f"message attribute type '{kind}'."
        )
    if isinstance(data, bytes):
        return data
    if found[1] == "Number" and (_NUMBER.fullmatch(data) is None or len(data) > 300):
        raise invalid_value(f"Could not cast message attribute '{name}' value to number.")
    return data.encode()
