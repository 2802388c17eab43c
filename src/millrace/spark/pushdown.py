"""Filter pushdown of batch reads: skips rows that Spark's filters exclude.

Rule 1: Spark applies all filters again. The read may return too many rows, never too few: an
unsupported filter narrows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

_Compared = EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual
_LOWER = (EqualTo, GreaterThan, GreaterThanOrEqual)
_UPPER = (EqualTo, LessThan, LessThanOrEqual)


class Narrow(msgspec.Struct, frozen=True):
    """The range of a queue that a read is narrowed to."""

    shards: tuple[int, ...] | None = None
    after: int = 0
    upto: int | None = None
    time_ms: int | None = None
    """The earliest time of rows in milliseconds."""
    keys: tuple[bytes, ...] | None = None

    def with_seq(self, low: int | None, high: int | None) -> Narrow:
        """Narrow the read to seqs from `low` to `high`."""
        after = self.after if low is None else max(self.after, low - 1)
        upto = self.upto
        if high is not None:
            upto = high if upto is None else min(upto, high)
        return msgspec.structs.replace(self, after=after, upto=upto)

    def with_shards(self, shards: Iterable[int]) -> Narrow:
        """Narrow the read to these shards."""
        found = tuple(one for one in shards if self.shards is None or one in self.shards)
        return msgspec.structs.replace(self, shards=found)

    def with_keys(self, keys: Iterable[bytes]) -> Narrow:
        """Narrow the read to these keys."""
        found = tuple(one for one in keys if self.keys is None or one in self.keys)
        return msgspec.structs.replace(self, keys=found)


def narrowed(filters: Iterable[Filter], narrow: Narrow) -> Narrow:
    """Narrow the read by the filters, all of which hold for every wanted row."""
    for one in filters:
        if isinstance(one, In):
            narrow = _among(narrow, one.attribute, list(one.value))
        elif isinstance(one, EqualTo) and one.attribute != ("seq",):
            narrow = _among(narrow, one.attribute, [one.value])
        if isinstance(one, _Compared):
            narrow = _compared(narrow, one)
    return narrow


def _among(narrow: Narrow, attribute: tuple[str, ...], values: list[object]) -> Narrow:
    numbers = [value for value in values if type(value) is int]
    keys = [bytes(value) for value in values if isinstance(value, bytes | bytearray)]
    if attribute == ("shard",) and len(numbers) == len(values):
        return narrow.with_shards(numbers)
    if attribute == ("key",) and len(keys) == len(values):
        return narrow.with_keys(keys)
    if attribute == ("seq",) and numbers and len(numbers) == len(values):
        return narrow.with_seq(min(numbers), max(numbers))
    return narrow


def _compared(narrow: Narrow, one: _Compared) -> Narrow:
    value = one.value
    if one.attribute == ("seq",) and type(value) is int:
        low = value + isinstance(one, GreaterThan) if isinstance(one, _LOWER) else None
        high = value - isinstance(one, LessThan) if isinstance(one, _UPPER) else None
        return narrow.with_seq(low, high)
    is_time = one.attribute == ("timestamp",) and isinstance(value, datetime)
    if is_time and isinstance(one, _LOWER) and value.tzinfo is not None:
        time_ms = int(value.timestamp() * 1000)
        if narrow.time_ms is None or time_ms > narrow.time_ms:
            return msgspec.structs.replace(narrow, time_ms=time_ms)
    return narrow
