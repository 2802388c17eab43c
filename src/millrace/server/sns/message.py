"""Messages that are published: what SNS refuses of them, and how they are stored.

A message is stored as it is: its text is the body, its attributes are headers, as those of SQS are.
An attribute that is an array has a header for each element, so that a filter sees them one by one.

Rule: everything is seen before anything is published.
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
from millrace.core.carry import SEQ_ROOM, TOPIC_SEQ
from millrace.core.group_cells import GROUP_HEADER
from millrace.server.clock import now_ms
from millrace.server.sns.faults import failed_validation, invalid, invalid_value
from millrace.server.sns.headers import ARRAYS, BODY_FOR, ID, SUBJECT, TIME, TOPIC, VERSION
from millrace.server.sns.shapes import AttributeValue, MessageIn
from millrace.server.sqs.values import DEDUP, OWN_PREFIXES, TRACE, TYPES

Pairs = list[tuple[str, bytes]]

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SUBJECT = re.compile(rf"[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{limits.SNS_SUBJECT_CHARS_MAX}}}")
"""Neither control characters nor line breaks, of which Unicode has some of its own."""

_ID = re.compile(rf"[\x21-\x7e]{{1,{limits.SNS_ID_CHARS_MAX}}}")
_ARRAY = "String.Array"


class Told(NamedTuple):
    """What the topic of a message says about it."""

    arn: str
    is_fifo: bool
    dedup_by_content: bool
    dedup_by_group: bool
    version: str
    """Of signatures."""
    bytes_max: int = limits.SNS_MESSAGE_BYTES
    """Of a message, and of all messages of a batch."""


class Ready(NamedTuple):
    """A message that may be published."""

    id: str
    message: Message


def ready(
    told: MessageIn, topic: Told, position: int | None = None, *, trace: bytes | None = None
) -> Ready:
    """The message that a call publishes; `position`: of which entry of a batch, from 1 on; `trace`:
    the trace header of the request.

    Raises:
        Fault: something of it cannot be so.
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
    return Ready(id, Message(body, headers=tuple(pairs), dedup=dedup))


def size_of(told: MessageIn) -> int:
    """Bytes of a message with its attributes, as SNS counts them."""
    return len(told.message.encode()) + sum(
        len(name.encode())
        + len(value.data_type.encode())
        + len((value.string_value or "").encode())
        + len(value.binary_value or b"")
        for name, value in told.message_attributes.items()
    )


def _bodies(told: MessageIn) -> tuple[bytes, Pairs]:
    """The text for queues, and those for others that are not the same."""
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


def _turns(told: MessageIn, topic: Told, pairs: Pairs) -> str | None:
    """Adds the headers of the message's group and id; returns what it is de-duplicated by."""
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


def _attributes(given: Mapping[str, AttributeValue], position: int | None) -> Pairs:
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
    """The elements of an array that are no arrays or objects; a number, true, false, null or text
    of JSON counts as an array of one. None: it is neither."""
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


def _value(name: str, value: AttributeValue) -> bytes:
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
