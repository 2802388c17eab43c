"""`millrace sql`: queries over snapshots of queues, run by DuckDB."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime
from typing import TYPE_CHECKING

import click

from millrace.cli.exit_errors import ExitError
from millrace.cli.formatting import (
    Fields,
    Value,
    bytes_field,
    escaped,
)
from millrace.cli.printing import TableColumn
from millrace.cli.shell import Shell, split_name, suggest
from millrace.cli.verb import verb
from millrace.errors import Refused

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from millrace import Millrace

VIEW = """
create view {name} as select shard, seq, "time", key, "value", headers,
  try(decode(key)) as key_text, try(decode("value")) as text
from {source}
"""

_SPACED = re.compile(r'"([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)"')
"""A quoted name of a queue outside the default space."""

_MISSING = re.compile(r"Table with name (\S+) does not exist")
"""DuckDB's message for a missing table."""


@verb(
    "sql",
    examples="""
        millrace sql 'select count(*) from mail'
        millrace sql "select key_text, text ->> 'item' as item from orders order by item"
        millrace sql "copy (select seq, text from mail) to 'mail.parquet'"
    """,
)
@click.argument("query")
async def sql(shell: Shell, query: str) -> None:
    """Run the SQL query QUERY, in which queues are tables.

    Each queue is read as a consistent snapshot, without leasing messages. The columns are shard,
    seq, time, key, value, headers, and key_text and text: key and value decoded as UTF-8, or null.
    Quote names with other characters than letters, digits and _ in double quotes. Needs the extra
    `sql`.
    """
    try:
        import duckdb
    except ModuleNotFoundError:
        raise ExitError(
            "sql needs DuckDB, which is not installed",
            "pip install 'millrace[sql]'",
            code="not_installed",
        ) from None
    with duckdb.connect(":memory:") as con:
        async with shell.open() as m:
            await _register(con, m, query)
            known = await m.queues()
        try:
            _show(shell, con.sql(query))
        except duckdb.Error as error:
            raise _failed(error, known) from None


async def _register(con: duckdb.DuckDBPyConnection, m: Millrace, query: str) -> None:
    """Create a view for each queue whose name occurs in the query; extra views are harmless."""
    con.execute("set timezone = 'UTC'")
    spaced = [name for name in _SPACED.findall(query) if split_name(name)[1]]
    named_here = [name for name in await m.queues() if name.lower() in query.lower()]
    for number, name in enumerate([*named_here, *spaced]):
        space, rest = split_name(name)
        try:
            queue = await m.find(rest, space=space)
        except Refused:
            # Some other text of the query, or DuckDB will report a missing table.
            continue
        source = f"snapshot_{number}"
        async with queue.snapshot() as snapshot:
            # In a thread: for a served folder, the event loop itself must fetch the rows.
            con.register(source, await asyncio.to_thread(snapshot.arrow().read_all))
        con.execute(VIEW.format(name=_quoted(name), source=source))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _failed(error: duckdb.Error, known: list[str]) -> ExitError:
    """Return DuckDB's error as one line, with a hint."""
    message = str(error).partition("\n")[0]
    missing = _MISSING.search(message)
    if missing is not None:
        hint = suggest(missing[1], known, "`millrace queue list` lists the queues")
        return ExitError(f"there is no queue {missing[1]!r}", hint, code="not_found")
    return ExitError(message, "`millrace sql --help` lists the columns", code="invalid")


def _show(shell: Shell, relation: duckdb.DuckDBPyRelation | None) -> None:
    if relation is None:
        # A statement without a result, such as COPY.
        shell.out.line("done", {}, "done")
        return
    found = relation.to_arrow_table()
    columns = [
        TableColumn(field.name, is_number=(number := _is_number(field.type)), is_long=not number)
        for field in found.schema
    ]
    rows = (
        (_fields(found.column_names, values), [_text(value) for value in values])
        for batch in found.to_batches()
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    shell.out.table("row", columns, rows, empty="no rows")


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _fields(names: list[str], values: tuple[object, ...]) -> Fields:
    """Return a row for JSON; columns are below `row`, since one may be named `type`."""
    row: dict[str, Value] = {}
    for name, value in zip(names, values, strict=True):
        row |= bytes_field(name, value) if isinstance(value, bytes) else {name: _value(value)}
    return {"row": row}


def _value(value: object) -> Value:
    match value:
        case None | str() | bool() | int() | float():
            return value
        case bytes():
            return bytes_field("value", value)
        case list() | tuple():
            return [_value(each) for each in value]
        case dict():
            parts: dict[str, Value] = {}
            for name, each in value.items():
                parts |= (
                    bytes_field(name, each) if isinstance(each, bytes) else {name: _value(each)}
                )
            return parts
        case datetime():
            return value.isoformat()
        case _:
            return str(value)


def _text(value: object) -> str:
    match value:
        case None:
            return "-"
        case bytes() | str():
            return escaped(value)
        case datetime():
            return value.isoformat()
        case list() | dict():
            return json.dumps(_value(value), ensure_ascii=False)
        case _:
            return str(value)
