"""Digests of rows, by which the contents of different stores are compared.

Sinks return values in different forms: bytes as base64 if they store JSON, numbers and timestamps
as text if they store bytes. The type of the view's column determines the canonical form to which
each of these is converted.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from millrace.sinks.base import DELETE, OP

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Plain = Callable[[object], object]
"""Converts a value to its canonical form for comparison."""


class Line(NamedTuple):
    """A row reduced to its key, seq and digest."""

    key: str
    """The values of its key columns, as JSON."""
    seq: int
    """The seq; 0 if the rows have no such column."""
    digest: int | None
    """The digest; None: the row deletes its key."""


def lines_of(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, columns: Sequence[str], key: Sequence[str]
) -> Iterator[Line]:
    """Yield a line for each row of a view, or of a sink filled from it.

    Without a key, the digest of a row serves as its key.
    """
    plain = {name: plain_of(schema.field(name).type) for name in (*columns, *key)}
    for batch in batches:
        names, count = batch.schema.names, batch.num_rows
        found = {
            name: list(map(make, batch.column(name).to_pylist())) for name, make in plain.items()
        }
        rows = zip(*(found[name] for name in columns), strict=True) if columns else [()] * count
        keys = zip(*(found[name] for name in key), strict=True) if key else [()] * count
        seqs = batch.column("seq").to_pylist() if "seq" in names else [0] * count
        ops = batch.column(OP).to_pylist() if OP in names and key else [None] * count
        for row, named, seq, op in zip(rows, keys, seqs, ops, strict=True):
            digest = digest_of(row)
            name = msgspec.json.encode(named).decode() if key else str(digest)
            yield Line(name, int(seq or 0), None if op == DELETE else digest)


def digest_of(row: Sequence[object]) -> int:
    """Return a digest of 64 bits that depends on every value."""
    encoded = msgspec.json.encode(row)
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big", signed=True)


def plain_of(kind: pa.DataType) -> Plain:
    """Return the function that converts values of a type to their canonical form."""
    make = _plain_of(kind)
    return lambda value: None if value is None else make(value)


def _plain_of(kind: pa.DataType) -> Plain:
    for is_this, make in _PLAIN:
        if is_this(kind):
            return make
    if isinstance(kind, pa.DictionaryType):
        return _plain_of(kind.value_type)
    if isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return _listed(plain_of(kind.value_type))
    if isinstance(kind, pa.StructType):
        return _structured({field.name: plain_of(field.type) for field in kind.fields})
    if isinstance(kind, pa.MapType):
        return _mapped(plain_of(kind.key_type), plain_of(kind.item_type))
    return _text


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _bytes(value: object) -> str:
    if isinstance(value, str):
        try:
            return b64decode(value, validate=True).hex()
        except (BadBase64, ValueError):
            return value.encode().hex()
    return cast("bytes", value).hex()


def _whole(value: object) -> object:
    try:
        return int(cast("int | str | bytes", value))
    except ValueError:
        return _text(value)


def _real(value: object) -> object:
    try:
        return repr(float(cast("float | str | bytes", value)))
    except ValueError:
        return _text(value)


def _decimal(value: object) -> str:
    try:
        return format(Decimal(_text(value)).normalize(), "f")
    except InvalidOperation:
        return _text(value)


def _truth(value: object) -> object:
    return value if isinstance(value, bool) else _text(value) == "true"


def _moment(value: object) -> object:
    if not isinstance(value, datetime):
        try:
            value = datetime.fromisoformat(_text(value))
        except ValueError:
            return _text(value)
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def _day(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else _text(value)


def _listed(make: Plain) -> Plain:
    def plain(value: object) -> object:
        return [make(one) for one in cast("list[object]", _opened(value))]

    return plain


def _structured(makes: dict[str, Plain]) -> Plain:
    def plain(value: object) -> object:
        given = cast("dict[str, object]", _opened(value))
        # The sink may name the fields differently: then they are matched by order.
        ones = map(given.get, makes) if given.keys() >= makes.keys() else given.values()
        return [make(one) for make, one in zip(makes.values(), ones, strict=False)]

    return plain


def _mapped(name: Plain, item: Plain) -> Plain:
    def plain(value: object) -> object:
        given = _opened(value)
        pairs = (
            given.items() if isinstance(given, dict) else cast("list[tuple[object, object]]", given)
        )
        return sorted(([name(one), item(other)] for one, other in pairs), key=repr)

    return plain


def _opened(value: object) -> object:
    """Decode a nested value that is stored as JSON."""
    return msgspec.json.decode(value) if isinstance(value, str | bytes) else value


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Plain], ...] = (
    (pt.is_boolean, _truth),
    (pt.is_integer, _whole),
    (pt.is_floating, _real),
    (pt.is_decimal, _decimal),
    (pt.is_timestamp, _moment),
    (pt.is_date, _day),
    (pt.is_binary, _bytes),
    (pt.is_large_binary, _bytes),
    (pt.is_fixed_size_binary, _bytes),
    (pt.is_binary_view, _bytes),
)
