"""Finds the row and column that PostgreSQL has refused."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from millrace.errors import Invalid
from millrace.sinks.wording import shown


def blame(
    db: psycopg.Connection[tuple[object, ...]],
    error: psycopg.Error,
    stage: sql.Identifier,
    names: Sequence[str],
    columns: Sequence[Sequence[object]],
    key: Sequence[str],
) -> Invalid:
    """Return an error that names row and column: each row is tried separately until one fails."""
    why = error.diag.message_primary or str(error)
    for row in zip(*columns, strict=True):
        if not _fits(db, stage, names, row):
            bad = [
                (name, value)
                for name, value in zip(names, row, strict=True)
                if not _fits(db, stage, [name], [value])
            ]
            name, value = bad[0] if bad else ("?", None)
            return Invalid(
                f"{_row(names, row, key)}, column {name!r}: PostgreSQL does not take "
                f"{shown(value)}: {why}; mend or drop it in a step",
                field=name,
            )
    return Invalid(f"PostgreSQL does not take a row: {why}", field="rows")


def refusal(error: psycopg.Error, table: str) -> Invalid:
    """Return the error for an operation that the table refused."""
    diag = error.diag
    said = ": ".join(
        part for part in (diag.message_primary or str(error), diag.message_detail) if part
    )
    column = diag.column_name
    where = f"table {table}" + (f", column {column!r}" if column else "")
    return Invalid(f"{where}: PostgreSQL refuses: {said}", field=column or "table")


def _fits(
    db: psycopg.Connection[tuple[object, ...]],
    stage: sql.Identifier,
    names: Sequence[str],
    row: Sequence[object],
) -> bool:
    query = sql.SQL("COPY {} ({}) FROM STDIN").format(
        stage, sql.SQL(", ").join(map(sql.Identifier, names))
    )
    try:
        with (
            db.transaction(force_rollback=True),
            db.cursor() as cursor,
            cursor.copy(query) as copy,
        ):
            copy.write_row(row)
    except psycopg.DataError:
        return False
    return True


def _row(names: Sequence[str], row: Sequence[object], key: Sequence[str]) -> str:
    wanted = [name for name in (key or ("seq", "key")) if name in names]
    if not wanted:
        return "a row"
    return "row " + ", ".join(f"{name} {shown(row[names.index(name)])}" for name in wanted)
