"""Compares two sets of rows by their digests, in a temporary database on disk of any size."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Literal

import msgspec

from millrace import limits
from millrace.pipeline.digest import Line

What = Literal["missing", "too many", "different"]

_TABLES = """
    create table wanted (key text, digest integer, many integer, seq integer, primary key (key));
    create table there (key text, digest integer, many integer, primary key (key, digest));
"""
_WANT = """
    insert into wanted values (?, ?, 1, ?) on conflict do update
    set many = many + ?, digest = excluded.digest, seq = excluded.seq where excluded.seq >= seq
"""
_FIND = "insert into there values (?, ?, 1) on conflict do update set many = many + 1"
_WRONG = """
    create table wrong as select key, max(lacking) as lacking, max(extra) as extra from (
        select w.key, 1 as lacking, 0 as extra from wanted w
        left join there t on t.key = w.key and t.digest = w.digest
        where w.digest is not null and w.many > coalesce(t.many, 0)
        union all
        select t.key, 0, 1 from there t
        left join wanted w on w.key = t.key and w.digest = t.digest
        where t.many > coalesce(w.many, 0)
    ) group by key
"""


class Compared(msgspec.Struct, frozen=True):
    """The result of a comparison."""

    expected: int
    found: int
    wrong: int
    differences: tuple[tuple[str, What], ...]
    """The first differences, ordered by key."""


def compare(expected: Iterable[Line], held: Iterable[Line], *, is_keyed: bool) -> Compared:
    """Compare the expected rows with the rows that the sink holds.

    With a key, only the newest of several expected rows counts, unless it deletes; without a key,
    all rows count.
    """
    # An unnamed temporary file, which SQLite deletes with the connection.
    db = sqlite3.connect("")
    try:
        db.execute(f"pragma cache_size = -{limits.PIPELINE_VERIFY_KIB}")
        db.executescript(_TABLES)
        if is_keyed:
            db.executemany(_WANT, ((one.key, one.digest, one.seq, 0) for one in expected))
        else:
            db.executemany(_WANT, ((one.key, one.digest, 0, 1) for one in expected))
        db.executemany(_FIND, ((one.key, one.digest) for one in held))
        db.execute(_WRONG)
        [(wanted,)] = db.execute(
            "select coalesce(sum(many), 0) from wanted where digest is not null"
        )
        [(found,)] = db.execute("select coalesce(sum(many), 0) from there")
        [(wrong,)] = db.execute("select count(*) from wrong")
        first = db.execute(
            "select key, lacking, extra from wrong order by lacking + extra desc, extra, key "
            "limit ?",
            (limits.PIPELINE_DIFFERENCES_MAX,),
        )
        return Compared(wanted, found, wrong, tuple((key, _what(*how)) for key, *how in first))
    finally:
        db.close()


def _what(lacking: int, extra: int) -> What:
    if lacking and extra:
        return "different"
    return "missing" if lacking else "too many"
