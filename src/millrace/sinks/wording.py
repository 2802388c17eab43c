"""Conversion of values to text: names of keys, ids, JSON, and messages."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import unquote_to_bytes

import msgspec

from millrace.errors import Invalid

SHOWN_MAX = 80
"""Maximum number of characters of a value in a message."""

_FIELD = re.compile(r"\{([^{}]*)\}")
_PASSWORD = re.compile(r"(?<![^/\s'\"(])([^/@\s:'\"(]*):[^/\s]+@")


def to_bytes(value: object) -> bytes:
    """Encode a value for stores of bytes: bytes and texts unchanged, other types as in JSON, None
    as empty bytes.
    """
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else _plain(value)


def to_text(value: object) -> str:
    """Convert a value to a part of an id: bytes that are not valid text in base64."""
    raw = to_bytes(value)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return b64encode(raw).decode()


def to_json(row: Mapping[str, object]) -> bytes:
    """Encode a row as JSON; bytes are written in base64, times in ISO 8601."""
    return msgspec.json.encode(row)


def shown(value: object) -> str:
    """Format a value for a message, truncated."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def masked(text: str) -> str:
    """Return the text with passwords in URLs removed: `user:password@host`."""
    return _PASSWORD.sub(r"\1:…@", text)


def columns_of(template: str) -> list[str]:
    """Return the columns that a template names in braces, in order."""
    return _FIELD.findall(template)


def check_template(template: str, key: Sequence[str], field: str) -> None:
    """Check that a template produces a unique name for every key.

    Raises:
        Invalid: it does not name exactly the columns of the key; or two of them are not separated
            unambiguously.
    """
    named = columns_of(template)
    if sorted(named) != sorted(key):
        raise Invalid(
            f"{field} is {template!r}, which names {', '.join(named) or 'no column'}; it has to "
            f"name the columns of the key, each once: {', '.join(f'{{{name}}}' for name in key)}",
            field=field,
        )
    between = _FIELD.split(template)[2:-1:2]
    if not all(between) or "%" in "".join(between):
        raise Invalid(
            f"{field} is {template!r}, where nothing parts two columns, or a % does, so that two "
            'keys may have one name; write "{a}:{b}"',
            field=field,
        )


def fill(template: str, row: Mapping[str, object]) -> bytes:
    """Fill the template with the values of a row.

    With several columns, separators and % in values are written as %XX: no two keys have the same
    name.

    Raises:
        Invalid: a value is null and cannot be part of a name.
    """
    parts, between = _parts(template)
    named = []
    for at, part in enumerate(parts):
        if not at % 2:
            named.append(part.encode())
            continue
        value = row[part]
        if value is None:
            raise Invalid(
                f"column {part!r} of the key is null in a row; leave such rows out by a step, or "
                "name other columns",
                field="key",
            )
        named.append(_escaped(to_bytes(value), between))
    return b"".join(named)


@lru_cache(maxsize=16)
def _parts(template: str) -> tuple[list[str], bytes]:
    """Split a template into columns alternating with text, and the bytes that separate columns."""
    parts = _FIELD.split(template)
    return parts, bytes(sorted(set("".join(parts[2:-1:2]).encode())))


@lru_cache(maxsize=16)
def _pattern(template: str) -> re.Pattern[bytes]:
    """Return the pattern that finds the escaped values in a name made by `fill`."""
    parts, between = _parts(template)
    value = b"([^%s]*)" % re.escape(between) if between else b"(.*)"
    found = (value if at % 2 else re.escape(part.encode()) for at, part in enumerate(parts))
    return re.compile(b"".join(found), re.DOTALL)


def values_in(name: bytes, template: str) -> list[bytes] | None:
    """Return the values in a name that `fill` made, in the order of `columns_of`; None if it did
    not.
    """
    match = _pattern(template).fullmatch(name)
    if match is None:
        return None
    _, is_escaped = _parts(template)
    return [unquote_to_bytes(one) if is_escaped else one for one in match.groups()]


def _escaped(value: bytes, between: bytes) -> bytes:
    # % first, since the other replacements add more of them.
    for one in b"%" + between if between else b"":
        value = value.replace(bytes([one]), b"%%%02X" % one)
    return value


def _plain(value: object) -> bytes:
    text = msgspec.json.encode(value)
    # JSON writes a time or a decimal as a string; its quotes are removed.
    return text[1:-1] if text.startswith(b'"') else text
