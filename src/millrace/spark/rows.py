"""Reads the rows of a part and converts them to the columns that Spark asked for."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StructField, StructType

from millrace.core.format.column import Array
from millrace.errors import Invalid
from millrace.spark.bodies import BodyParser, avro_ddl, make_parser
from millrace.spark.columns import CORRUPT, SHARD_COLUMNS, Shaper, chosen, ddl, needed, sized
from millrace.spark.options import Options
from millrace.spark.read import ReadPartition, read_part


def schema_ddl(options: Options) -> str:
    """Return the columns of a read as a DDL string of Spark.

    Raises:
        Invalid: a column does not exist, or the schema of bodies is invalid.
    """
    found = ddl(chosen(options.columns, is_parsed=bool(options.schema)))
    if not options.schema:
        return found
    typed = avro_ddl(options.schema) if options.format == "avro" else options.schema
    whole = f"{found}, {typed}, {CORRUPT} binary"
    return f"{whole}, {options.body} binary" if options.body else whole


class PartitionReader:
    """Reads and converts rows; it is made by the driver and used by the tasks.

    Raises:
        Invalid: the columns differ from the options, or a body cannot be converted to them.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._names = chosen(options.columns, is_parsed=bool(options.schema))
        _check(options, schema, self._names)
        if options.schema:
            self._parser()

    def of(self, part: ReadPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part."""
        if not gc.get_freeze_count():
            # Spark runs the garbage collector after every task, over all imported objects.
            gc.freeze()
        options, schema = self._options, self._arrow()
        shaper = Shaper(schema, part.number, part.snapshot)
        parser = self._parser() if options.schema else None
        keys = None if options.keys is None else pa.array(options.keys, pa.binary())
        is_live = options.view == "latest"
        found = read_part(options, part, self._needed())
        for rows in sized(_wanted(batch, keys, is_live=is_live) for batch in found):
            columns = [shaper.column(name, rows) for name in self._names]
            if parser is not None:
                parsed = parser.parse(rows.column("value"))
                if parsed.is_spread:
                    columns = [parsed.spread(column) for column in columns]
                columns += [*parsed.columns, parsed.corrupt]
                if options.body:
                    body = rows.column("value")
                    columns.append(parsed.spread(body) if parsed.is_spread else body)
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self._schema, timezone="UTC")

    def _parser(self) -> BodyParser:
        fields = list(self._arrow())[len(self._names) : _end(self._options)]
        return make_parser(self._options.format, self._options.schema, fields)

    def _needed(self) -> tuple[str, ...] | None:
        """Return the queue's columns that are requested; None: all of them."""
        names = list(self._names)
        if self._options.keys is not None:
            names.append("key")
        if self._options.view == "latest" or self._options.schema:
            names.append("value")
        found = ("seq", *needed(names))
        return None if len(found) == len(SHARD_COLUMNS) else found


def _check(options: Options, schema: StructType, names: tuple[str, ...]) -> None:
    found = schema.fieldNames()
    typed = found[len(names) : _end(options)] if options.schema else []
    if tuple(found[: len(names)]) != names or (not options.schema and len(found) > len(names)):
        raise Invalid(
            f"the columns of this read are {', '.join(names)}, not {', '.join(found)}; choose "
            "among them by the option columns, and say by the option schema what bodies hold",
            field="schema",
        )
    if options.body and found.count(options.body) > 1:
        raise Invalid(
            f"body names the column {options.body!r}, and there is one already; take another name",
            field="body",
        )
    for field in schema.fields[len(names) : _end(options)] if options.schema else []:
        if field.name in names or field.name == CORRUPT or typed.count(field.name) > 1:
            raise Invalid(
                f"the schema has a field {field.name!r}, and so has the row itself; leave that out "
                "by the option columns, which names those that are wanted",
                field="schema",
            )
        required = _required(field)
        if required:
            raise Invalid(
                f"the schema says that {required!r} is never null, and of a body that is none of "
                "it, it is; leave NOT NULL out",
                field="schema",
            )


def _end(options: Options) -> int:
    """Return the end of the columns of bodies, as a negative index into all columns."""
    return -2 if options.body else -1


def _required(field: StructField) -> str:
    """Return the first field of these that is declared NOT NULL, or an empty text."""
    if not field.nullable:
        return field.name
    kind = field.dataType
    while isinstance(kind, ArrayType):
        kind = kind.elementType
    inner = kind.fields if isinstance(kind, StructType) else []
    return next((f"{field.name}.{found}" for one in inner if (found := _required(one))), "")


def _wanted(batch: pa.RecordBatch, keys: Array | None, *, is_live: bool) -> pa.RecordBatch:
    if is_live and batch.column("value").null_count:
        batch = batch.filter(batch.column("value").is_valid())
    if keys is not None:
        batch = batch.filter(pc.is_in(batch.column("key"), keys))
    return batch
