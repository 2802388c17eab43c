"""Filters that say what need not be read."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from millrace.spark.batch import Narrow, narrowed

SEQ, KEY, SHARD, TIME = ("seq",), ("key",), ("shard",), ("timestamp",)


def of(*filters: Filter) -> Narrow:
    return narrowed(filters, Narrow())


def test_seqs_shards_keys_and_times_narrow_what_is_read() -> None:
    assert of(GreaterThan(SEQ, 5), LessThan(SEQ, 9)) == Narrow(after=5, upto=8)
    assert of(GreaterThanOrEqual(SEQ, 5), LessThanOrEqual(SEQ, 9)) == Narrow(after=4, upto=9)
    assert of(EqualTo(SEQ, 7), GreaterThan(SEQ, 1)) == Narrow(after=6, upto=7)
    assert of(In(SEQ, (9, 3))) == Narrow(after=2, upto=9)
    assert of(In(SHARD, (1, 2)), EqualTo(SHARD, 2)) == Narrow(shards=(2,))
    assert of(In(KEY, (b"a", b"b")), EqualTo(KEY, bytearray(b"b"))) == Narrow(keys=(b"b",))
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    assert of(GreaterThan(TIME, moment)).time_ms == moment.timestamp() * 1000


def test_what_is_not_understood_narrows_nothing() -> None:
    assert (
        of(
            IsNull(KEY),
            Not(EqualTo(SEQ, 5)),
            EqualTo(KEY, "text"),
            In(KEY, (b"a", None)),
            GreaterThan(("value",), 5),
            GreaterThan(TIME, datetime(2030, 1, 1)),
            LessThan(TIME, datetime(2030, 1, 1, tzinfo=UTC)),
        )
        == Narrow()
    )
