"""Message attributes: conversion to and from headers, validation, and MD5 digests.

An attribute is stored as the header of its name; the types other than `String` are stored in one
additional header. So other protocols see attributes as ordinary headers, and headers of other
protocols are attributes here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import md5
from struct import Struct

import msgspec

from millrace import limits
from millrace.core.model import Headers, ShardId
from millrace.server.aws.fault import CHARACTERS, bad_contents, bad_value, invalid_parameter
from millrace.server.aws.query_protocol import NOT_IN_XML
from millrace.server.aws.queue_info import PREFIX
from millrace.server.aws.topic_headers import ARRAYS
from millrace.server.http.proxy_headers import TRACE_ID

TYPES = f"{PREFIX}types"
TRACE = f"{PREFIX}trace"
DEDUP = f"{PREFIX}dedup"
SENDER = f"{PREFIX}sender"
TRACE_ATTRIBUTE = "AWSTraceHeader"
_EVERY = frozenset({"All", "*", ".*"})
OWN_PREFIXES = (PREFIX, "millrace-")
"""Prefixes of headers that are not attributes."""

_LENGTH = Struct(">I")
_NAME = re.compile(rf"[\w.-]{{1,{limits.SQS_ATTRIBUTE_NAME_CHARS_MAX}}}")
_TYPE = re.compile(r"(String|Number|Binary)(\..+)?", re.DOTALL)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_ID = re.compile(rf"[\x21-\x7e]{{1,{limits.SQS_ID_CHARS_MAX}}}")
_CONTROLS = bytes(one for one in range(32) if one not in b"\t\n\r")


class AttributeValue(
    msgspec.Struct, frozen=True, rename="pascal", omit_defaults=True, forbid_unknown_fields=True
):
    """The value of a message attribute in the JSON protocol of SQS."""

    string_value: str | None = None
    binary_value: bytes | None = None
    string_list_values: list[str] | None = None
    binary_list_values: list[bytes] | None = None
    data_type: str = ""


def are_seen(raw: bytes | bytearray | memoryview) -> bool:
    """Return whether the bytes of a JSON object show that XML can represent its texts.

    This holds for ASCII without escapes: JSON has control characters only as escapes.
    """
    return type(raw) is bytes and raw.isascii() and b"\\" not in raw


def see_text(body: bytes) -> None:
    """Verify that XML can represent a text.

    Raises:
        Fault: it has characters that XML cannot represent.
    """
    # A fast path: most texts are ASCII, for which this takes a fifth of the time.
    if body.isascii() and len(body.translate(None, _CONTROLS)) == len(body):
        return
    if NOT_IN_XML.search(body.decode()) is not None:
        raise bad_contents()


def see_id(text: str | None, name: str) -> None:
    """Validate the id of a group, message or receive; None is valid.

    Raises:
        Fault: the id is invalid.
    """
    if text is not None and _ID.fullmatch(text) is None:
        raise bad_value(
            text[:200],
            name,
            f"{name} can only include alphanumeric and punctuation characters. 1 to "
            f"{limits.SQS_ID_CHARS_MAX} in length.",
        )


def attributes_in(given: Mapping[str, AttributeValue]) -> list[tuple[str, bytes]]:
    """Validate attributes and return them as headers.

    Raises:
        Fault: an attribute is invalid, or there are too many.
    """
    if len(given) > limits.SQS_ATTRIBUTES_MAX:
        raise invalid_parameter(
            f"Number of message attributes [{len(given)}] exceeds the allowed maximum "
            f"[{limits.SQS_ATTRIBUTES_MAX}]."
        )
    headers: list[tuple[str, bytes]] = []
    types: dict[str, str] = {}
    for name, value in given.items():
        _see_name(name)
        headers.append((name, _value_in(name, value)))
        if value.data_type != "String":
            types[name] = value.data_type
    if types:
        headers.append((TYPES, msgspec.json.encode(types)))
    return headers


def attributes_size(given: Mapping[str, AttributeValue]) -> int:
    """Return the size of attributes in bytes: their names, types and values."""
    return sum(
        len(name.encode())
        + len(value.data_type.encode())
        + len((value.string_value or "").encode())
        + len(value.binary_value or b"")
        for name, value in given.items()
    )


def _see_name(name: str) -> None:
    if not name:
        raise invalid_parameter(
            "The message attribute name must contain non-empty message attribute name."
        )
    if _NAME.fullmatch(name) is None or name.startswith(".") or name.endswith(".") or ".." in name:
        raise invalid_parameter(
            "The message attribute name can contain the following characters: A-Z, a-z, 0-9, "
            "underscore (_), hyphen (-), and period (.); it must not start or end with a period, "
            "have periods in succession, or more than "
            f"{limits.SQS_ATTRIBUTE_NAME_CHARS_MAX} characters."
        )
    if name.lower().startswith(("aws.", "amazon.")):
        raise invalid_parameter(
            f"The message attribute name '{name}' must not start with AWS-reserved prefixes."
        )
    if name.startswith(OWN_PREFIXES):
        # Headers of these names record the history of a message and are not attributes.
        raise invalid_parameter(
            f"The message attribute name '{name}' must not start with 'millrace-'."
        )


def _value_in(name: str, value: AttributeValue) -> bytes:
    kind = value.data_type
    if not kind:
        raise invalid_parameter(
            f"The message attribute '{name}' must contain a non-empty message attribute type."
        )
    found = _TYPE.fullmatch(kind)
    if found is None:
        raise invalid_parameter(
            f"The message attribute '{name}' has an invalid message attribute type, the set of "
            "supported type prefixes is Binary, Number, and String."
        )
    if len(kind) > limits.SQS_ATTRIBUTE_NAME_CHARS_MAX:
        raise invalid_parameter(f"The type of the message attribute '{name}' is too long.")
    if value.string_list_values or value.binary_list_values:
        raise invalid_parameter(
            "Message attribute list values in SendMessage operation are not supported."
        )
    if found[1] == "Binary":
        data = value.binary_value
        if not data:
            raise _empty(name, kind)
        return data
    text = value.string_value
    if not text:
        raise _empty(name, kind)
    encoded = text.encode()
    if NOT_IN_XML.search(text) is not None:
        raise invalid_parameter(
            f"Message (user) attribute '{name}' has a character that is not allowed: the set of "
            f"allowed characters is {CHARACTERS}"
        )
    if found[1] == "Number" and (_NUMBER.fullmatch(text.strip()) is None or len(text) > 300):
        raise invalid_parameter(
            f"Can't cast the value of message (user) attribute '{name}' to a number."
        )
    return encoded


def _empty(name: str, kind: str) -> Exception:
    return invalid_parameter(
        f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'."
    )


def trace_of(headers: Mapping[str, str]) -> bytes | None:
    """Return the trace header of a request, which its messages keep as AWSTraceHeader.

    A header that is too long, or that XML cannot represent, is ignored: a proxy may have added it.
    """
    text = headers.get(TRACE_ID)
    if not text or len(text) > limits.SQS_TRACE_CHARS_MAX or NOT_IN_XML.search(text) is not None:
        return None
    return text.encode()


def trace_in(given: Mapping[str, AttributeValue]) -> bytes | None:
    """Return the trace header among system attributes, the only one that can be sent.

    Raises:
        Fault: there are others, or its value is invalid.
    """
    trace: bytes | None = None
    for name, value in given.items():
        if name != TRACE_ATTRIBUTE:
            raise bad_value(name, "MessageSystemAttributes", f"Only {TRACE_ATTRIBUTE} can be sent.")
        if value.data_type != "String" or not value.string_value:
            raise invalid_parameter(
                f"The system attribute {TRACE_ATTRIBUTE} must be a String with a value."
            )
        trace = value.string_value.encode()
        see_text(trace)
    return trace


def attributes_out(headers: Headers) -> dict[str, AttributeValue]:
    """Return the attributes in headers."""
    types: dict[str, str] = {}
    arrays: dict[str, str] = {}
    pairs: list[tuple[str, bytes]] = []
    for name, value in headers:
        if name == TYPES:
            types = _texts_of(value)
        elif name == ARRAYS:
            arrays = _texts_of(value)
        elif not name.startswith(OWN_PREFIXES):
            pairs.append((name, value))
    found: dict[str, AttributeValue] = {}
    for name, value in pairs:
        kind = types.get(name, "String")
        text = None if kind.startswith("Binary") else _text(value)
        if text is None:
            kind = kind if kind.startswith("Binary") else "Binary"
            found[name] = AttributeValue(binary_value=value, data_type=kind)
        else:
            found[name] = AttributeValue(string_value=text, data_type=kind)
    for name, text in arrays.items():
        kind = types.get(name, "String")
        # Headers may be of another protocol: an array is text, whatever type they claim.
        kind = "String" if kind.startswith("Binary") else kind
        found[name] = AttributeValue(string_value=text, data_type=kind)
    return found


def _texts_of(value: bytes) -> dict[str, str]:
    try:
        found = msgspec.json.decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {name: text for name, text in found.items() if isinstance(text, str)}


def _text(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if NOT_IN_XML.search(text) is None else None


def chosen(
    attributes: Mapping[str, AttributeValue], names: Iterable[str]
) -> dict[str, AttributeValue]:
    """Return the attributes that a receive requests: by name, by prefix (`x.*`), or all."""
    wanted = set(names)
    if not _EVERY.isdisjoint(wanted):
        return dict(attributes)
    starts = tuple(name[:-2] for name in wanted if name.endswith(".*"))
    return {
        name: value
        for name, value in attributes.items()
        if name in wanted or (starts and name.startswith(starts))
    }


def attributes_digest(attributes: Mapping[str, AttributeValue]) -> str:
    """Return the MD5 of attributes as AWS clients verify it."""
    return _digest(
        [
            (name, value.data_type, value.binary_value, value.string_value)
            for name, value in attributes.items()
        ]
    )


def _digest(pairs: Sequence[tuple[str, str, bytes | None, str | None]]) -> str:
    parts: list[bytes] = []
    for name, kind, data, text in sorted(pairs):
        value = (text or "").encode() if data is None else data
        for piece in (name.encode(), kind.encode()):
            parts += (_LENGTH.pack(len(piece)), piece)
        parts += (b"\x01" if data is None else b"\x02", _LENGTH.pack(len(value)), value)
    return digest_of(b"".join(parts))


# --- A cache of MD5 digests of bodies that were sent through this process, for their receive -----
#
# A digest is used only for exactly the bytes that it was computed of: if another message has the
# same shard and seq, because the queue was replaced, its digest is computed anew.

_BESIDE_BYTES = 400
"""Memory that an entry needs in addition to its body."""


def digest_of(body: bytes) -> str:
    """Return the MD5 of a body in hexadecimal."""
    return md5(body, usedforsecurity=False).hexdigest()


class Digests:
    """Bodies that were sent but not received yet, with their digests; cleared when it is full."""

    def __init__(self) -> None:
        self._of: dict[tuple[ShardId, int], tuple[bytes, str]] = {}
        """Body and digest by shard and seq."""
        self._size = 0

    def keep(self, shard: ShardId, seq: int, body: bytes, digest: str) -> None:
        """Cache the digest of a body that was sent to this shard and seq."""
        self._drop(shard, seq)
        size = len(body) + _BESIDE_BYTES
        self._size += size
        if self._size > limits.SQS_DIGESTS_BYTES_MAX:
            self._of.clear()
            self._size = size
        if size <= limits.SQS_DIGESTS_BYTES_MAX:
            self._of[shard, seq] = body, digest

    def take(self, shard: ShardId, seq: int, body: bytes) -> str:
        """Return the digest of a body that was received, and remove it from the cache."""
        known = self._drop(shard, seq)
        if known is None:
            return digest_of(body)
        kept, digest = known
        return digest if kept == body else digest_of(body)

    def _drop(self, shard: ShardId, seq: int) -> tuple[bytes, str] | None:
        known = self._of.pop((shard, seq), None)
        if known is not None:
            self._size -= len(known[0]) + _BESIDE_BYTES
        return known
