"""Formats values and messages for terminals and for JSON.

Rule 1: what comes from a message or from a file is never shown raw: control characters could
command the terminal.
Rule 2: text is shortened. JSON is complete; only `millrace dump`, which shows damaged folders too,
shortens bodies, keys and headers there as well.
Rule 3: in JSON, bytes are text where they are UTF-8. Where they are not, the field has the suffix
`_base64`, so that nothing is lost and nothing guessed.
"""

from __future__ import annotations

from base64 import b64encode
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol, TypeAlias

from millrace.cli.bounds import SHOWN_BYTES, SHOWN_RANGES

if TYPE_CHECKING:
    from pyroaring import BitMap64


Value: TypeAlias = str | int | float | bool | Sequence["Value"] | Mapping[str, "Value"] | None
"""A value that JSON can represent."""

Fields = Mapping[str, Value]


# --- Values ------------------------------------------------------------------------------------


def escaped(data: bytes | str) -> str:
    """Return the text with unprintable characters escaped, so that no two texts look the same."""
    return "".join(map(_shown, _characters(data)))


def _characters(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")


def _shown(character: str) -> str:
    if character.isprintable() and character != "\\":
        return character
    if "\udc80" <= character <= "\udcff":
        # A byte that is not valid UTF-8.
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def shortened(data: bytes | None) -> str:
    """Return the beginning of a body, key or header as text, with its length if it was cut."""
    if data is None:
        return "null"
    pieces = [_shown(character) for character in _characters(data[:SHOWN_BYTES])]
    lengths = list(accumulate(map(len, pieces)))
    text = "".join(pieces[: bisect_right(lengths, SHOWN_BYTES)])
    if len(data) <= SHOWN_BYTES and len(text) == sum(map(len, pieces)):
        return f'"{text}"'
    return f'"{text}"… ({len(data)} bytes)'


def shown_bytes(data: bytes | None) -> Value:
    """Return length and beginning of a body, key or header for JSON."""
    if data is None:
        return None
    return {"bytes": len(data), "text": escaped(data[:SHOWN_BYTES])}


def ranges(seqs: BitMap64) -> list[tuple[int, int]]:
    """Return the set as ranges, both ends included."""
    if not seqs:
        return []
    # Imported here: it is slow, and most verbs show no sets.
    import numpy as np

    numbers = np.frombuffer(seqs.to_array(), np.uint64)
    ends = np.flatnonzero(np.diff(numbers) != 1)
    firsts = [int(numbers[0]), *numbers[ends + 1].tolist()]
    lasts = [*numbers[ends].tolist(), int(numbers[-1])]
    return list(zip(firsts, lasts, strict=True))


def ranges_text(found: Sequence[tuple[int, int]]) -> str:
    """Return ranges of seqs as text, shortened."""
    if not found:
        return "none"
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in found[:SHOWN_RANGES]]
    count = sum(high - low + 1 for low, high in found)
    if len(found) > SHOWN_RANGES:
        shown.append(f"… ({count} in all)")
    return ", ".join(shown)


def time_text(time_ms: int) -> str:
    """Return milliseconds since 1970 as an ISO time in UTC, or the number if it is out of range."""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}Z"


def size_text(count: int) -> str:
    """Return a number of bytes as text, in B, KiB, MiB, GiB or TiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


class MessageLike(Protocol):
    """The fields that rows and leases share."""

    @property
    def seq(self) -> int: ...
    @property
    def time_ms(self) -> int: ...
    @property
    def body(self) -> bytes | None: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


def bytes_field(name: str, data: bytes | None) -> dict[str, Value]:
    """Return bytes as a JSON field: `name` as text, or `name_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode("ascii")}


def message_fields(message: MessageLike) -> dict[str, Value]:
    """Return all fields of a message for JSON."""
    return {
        "seq": message.seq,
        "time_ms": message.time_ms,
        **bytes_field("key", message.key),
        "headers": [
            {"name": name, **bytes_field("value", value)} for name, value in message.headers
        ],
        **bytes_field("body", message.body),
    }


def key_text(key: bytes | None) -> str:
    """Return a key as the text of a table cell."""
    return "-" if key is None else escaped(key)


def headers_text(headers: Sequence[tuple[str, bytes]]) -> str:
    """Return headers as the text of a table cell."""
    return " ".join(f"{escaped(name)}={escaped(value)}" for name, value in headers) or "-"


def body_text(body: bytes | None) -> str:
    """Return the beginning of a body as the text of a table cell."""
    return "(deleted)" if body is None else shortened(body)


def plural(number: int, what: str) -> str:
    """Return a number with its noun, whose plural ends with s: 1 row, 2,000 rows."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
