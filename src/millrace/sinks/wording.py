"""Values of rows as text: names of keys, ids, JSON."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import lru_cache
from urllib.parse import unquote_to_bytes

import msgspec

from millrace.errors import Invalid

SHOWN_MAX = 80
"""Characters of a value that a message shows."""

_FIELD = re.compile(r"\{([^{}]*)\}")
_PASSWORD = re.compile(r"(?<![^/\s'\"(])([^/@\s:'\"(]*):[^/\s]+@")


def to_bytes(value: object) -> bytes:
    """A value as it is stored where there are only bytes: bytes and texts as they are, all else as
    JSON has it; what is missing is empty."""
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else _plain(value)


def to_text(value: object) -> str:
    """A value as a part of an id: bytes that are no text in base64."""
    raw = to_bytes(value)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return b64encode(raw).decode()


def to_json(row: Mapping[str, object]) -> bytes:
    """A row as JSON; bytes are written in base64, moments as ISO 8601 has them."""
    return msgspec.json.encode(row)


def shown(value: object) -> str:
    """A value in a message."""
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def masked(text: str) -> str:
    """A text whose addresses show no password: of `user:password@host` it is left out."""
    return _PASSWORD.sub(r"\1:…@", text)


def columns_of(template: str) -> list[str]:
    """The columns that a template names in braces, in their order."""
    return _FIELD.findall(template)


def check_template(template: str, key: Sequence[str], field: str) -> None:
    """See that a template makes a name of its own for every key.

    Raises:
        Invalid: it does not name all columns of the key, or others; or nothing parts two of them
            for certain.
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
    """The template with the values of a row. Of several columns, what parts them is written as %XX
    in their values, and so is %: no two keys have one name.

    Raises:
        Invalid: a value is null, which names nothing.
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
    """What stands in a template, columns in turns with the rest, and the bytes that part them."""
    parts = _FIELD.split(template)
    return parts, bytes(sorted(set("".join(parts[2:-1:2]).encode())))


@lru_cache(maxsize=16)
def _pattern(template: str) -> re.Pattern[bytes]:
    """What finds the values in a name that `fill` made, as they are written there."""
    parts, between = _parts(template)
    value = b"([^%s]*)" % re.escape(between) if between else b"(.*)"
    found = (value if at % 2 else re.escape(part.encode()) for at, part in enumerate(parts))
    return re.compile(b"".join(found), re.DOTALL)


def values_in(name: bytes, template: str) -> list[bytes] | None:
    """The values in a name that `fill` made, in the order of `columns_of`; None: it made it not."""
    match = _pattern(template).fullmatch(name)
    if match is None:
        return None
    _, is_escaped = _parts(template)
    return [unquote_to_bytes(one) if is_escaped else one for one in match.groups()]


def _escaped(value: bytes, between: bytes) -> bytes:
    # % first: what comes after it brings some of its own.
    for one in b"%" + between if between else b"":
        value = value.replace(bytes([one]), b"%%%02X" % one)
    return value


def _plain(value: object) -> bytes:
    text = msgspec.json.encode(value)
    # A moment or a decimal is a text in JSON; here it stands alone.
    return text[1:-1] if text.startswith(b'"') else text
