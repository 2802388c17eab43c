"""The parser interface, and the conversion of parsed records to columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.format.column import Array
from millrace.errors import Invalid
from millrace.spark.options import Format

Fields = Sequence["pa.Field[pa.DataType]"]


class Parsed:
    """The result of parsing the bodies of a batch."""

    def __init__(
        self, columns: list[Array], corrupt: Array, rows: Sequence[int] | None = None
    ) -> None:
        self.columns = columns
        """The typed columns, in the order of the schema."""
        self.corrupt = corrupt
        self._rows = None if rows is None else pa.array(rows, pa.int64())

    @property
    def is_spread(self) -> bool:
        """True if a message may be several rows."""
        return self._rows is not None

    def spread(self, column: Array) -> Array:
        """Repeat the values of a column of messages for each of their rows."""
        return column if self._rows is None else column.take(self._rows)


class BodyParser(Protocol):
    """Parses bodies of one format."""

    def parse(self, bodies: Array) -> Parsed:
        """Return the typed columns of these bodies."""
        ...


def make_parser(format: Format, schema: str, fields: Fields) -> BodyParser:
    """Make a parser for bodies of these fields; `schema` is the option, which Avro needs whole.

    Raises:
        Invalid: a type is unsupported, or a dependency of the format is not installed.
    """
    if format == "json":
        from millrace.spark.bodies.json import JsonParser

        return JsonParser(fields)
    if format == "arrow":
        from millrace.spark.bodies.arrow import ArrowParser

        return ArrowParser(fields)
    from millrace.spark.bodies.avro import AvroParser

    return AvroParser(schema, fields)


def of_records(
    records: list[Mapping[str, object] | None], bodies: Array, bad: set[int], fields: Fields
) -> Parsed:
    """Convert records to columns; None is a delete, or a record that is known to be bad."""
    columns: list[Array] = []
    for field in fields:
        values = [None if record is None else record.get(field.name) for record in records]
        try:
            columns.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            # Rare: a value has the right type, and is too large for its column.
            unfit = {at for at, value in enumerate(values) if not _fits(value, field.type)}
            if not unfit:
                raise
            left = [None if at in unfit else record for at, record in enumerate(records)]
            return of_records(left, bodies, bad | unfit, fields)
    return Parsed(columns, kept(bodies, bad))


def _fits(value: object, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True


def kept(bodies: Array, bad: set[int]) -> Array:
    """Return the bodies at these places, and null at all others."""
    if not bad:
        return pa.nulls(len(bodies), pa.binary())
    mask = pa.array([at in bad for at in range(len(bodies))])
    found: Array = pc.if_else(mask, bodies, pa.scalar(None, pa.binary()))
    return found


def no_way(field: str, kind: pa.DataType, format: Format) -> Invalid:
    """Return the error for a type that bodies of a format cannot have."""
    return Invalid(
        f"the field {field!r} is of type {kind}, which format={format} does not give; read it as "
        "string and cast it in Spark",
        field="schema",
    )
