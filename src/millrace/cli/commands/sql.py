"""`millrace sql`: questions to queues, answered by DuckDB over snapshots."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime
from typing import TYPE_CHECKING

import click

from millrace.cli.ending import Ended
from millrace.cli.printing import Column
from millrace.cli.shell import Shell, split_name, suggest
from millrace.cli.show import Fields, Value, escaped
from millrace.cli.text import named
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
"""A queue outside the default space, as a query names it."""

_MISSING = re.compile(r"Table with name (\S+) does not exist")
"""How DuckDB says that there is no such table."""


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
    """Answer QUERY, in which the names of queues are tables.

    Each queue that the query names is read as of one moment, without leasing anything. The columns
    are shard, seq, time, key, value, headers, and key_text and text: key and value as text, where
    they are UTF-8. A name with other characters than letters, digits and _ stands in double quotes.
    It needs the extra `sql`.
    """
    try:
        import duckdb
    except ModuleNotFoundError:
        raise Ended(
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
    """Make a view of each queue whose name is in the query; one too many does no harm."""
    con.execute("set timezone = 'UTC'")
    spaced = [name for name in _SPACED.findall(query) if split_name(name)[1]]
    named_here = [name for name in await m.queues() if name.lower() in query.lower()]
    for number, name in enumerate([*named_here, *spaced]):
        space, rest = split_name(name)
        try:
            queue = await m.find(rest, space=space)
        except Refused:
            # It is text within the query, or DuckDB will say that there is no such table.
            continue
        source = f"snapshot_{number}"
        async with queue.snapshot() as snapshot:
            # Of a folder that is served, the event loop itself has to fetch them.
            con.register(source, await asyncio.to_thread(snapshot.arrow().read_all))
        con.execute(VIEW.format(name=_quoted(name), source=source))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _failed(error: duckdb.Error, known: list[str]) -> Ended:
    """What DuckDB has to say, on one line."""
    message = str(error).partition("\n")[0]
    missing = _MISSING.search(message)
    if missing is not None:
        hint = suggest(missing[1], known, "`millrace queue list` lists the queues")
        return Ended(f"there is no queue {missing[1]!r}", hint, code="not_found")
    return Ended(message, "`millrace sql --help` says which columns there are", code="invalid")


def _show(shell: Shell, relation: duckdb.DuckDBPyRelation | None) -> None:
    if relation is None:
        # A statement that answers nothing, such as COPY.
        shell.out.line("done", {}, "done")
        return
    found = relation.to_arrow_table()
    columns = [
        Column(field.name, is_number=(number := _is_number(field.type)), is_long=not number)
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
    """A row for JSON: the columns below `row`, since one of them may be called `type`."""
    row: dict[str, Value] = {}
    for name, value in zip(names, values, strict=True):
        row |= named(name, value) if isinstance(value, bytes) else {name: _value(value)}
    return {"row": row}


def _value(value: object) -> Value:
    match value:
        case None | str() | bool() | int() | float():
            return value
        case bytes():
            return named("value", value)
        case list() | tuple():
            return [_value(each) for each in value]
        case dict():
            parts: dict[str, Value] = {}
            for name, each in value.items():
                parts |= named(name, each) if isinstance(each, bytes) else {name: _value(each)}
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
