"""Reads that `decide` asks of the store before it can go on, and their results."""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace.core.cells import Kind
from millrace.core.model import ShardId


class Need(msgspec.Struct, frozen=True):
    """A read of the store without which `decide` cannot go on; nothing was decided yet."""

    shard: ShardId
    keys: tuple[bytes, ...] = ()
    """The newest live seqs of these keys."""
    hidden: tuple[int, int] | None = None
    """The rows within [low, high] that are never delivered."""
    stages: tuple[str, ...] = ()
    """The keys and deletes of these stages ..."""
    grouped: bool = False
    """... and the groups of their rows."""
    rows: tuple[int, ...] = ()
    """The states of these rows."""
    cells: tuple[Kind, bytes, int] | None = None
    """The first cells of a kind, from a key on: (kind, key, limit)."""
    points: tuple[tuple[Kind, bytes], ...] = ()
    """Single cells, of kinds that a view does not hold."""
    ended: tuple[tuple[int, int], ...] = ()
    """Within each [low, high], the rows that are dead, or settled and kept."""
    dead: tuple[tuple[int, int], ...] = ()
    """Within each [low, high], the dead rows; pins may still show them."""
    older_ms: int | None = None
    """The first row that is not older than this."""
    held: tuple[int, ...] = ()
    """The dead rows that these pins keep."""
    live: bool = False
    """The number of live and kept rows."""
    outlived: tuple[int, int, int] | None = None
    """Messages older than a time, after a seq: (seq, time, limit)."""


class PinnedRows(msgspec.Struct, frozen=True):
    """Rows of a range of seqs that are visible to one pin and its neighbours only."""

    low: int
    high: int
    rows: int


class ExpiredRows(msgspec.Struct, frozen=True):
    """Live messages that were published before a time: the first ones after a seq."""

    seqs: BitMap64
    upto: int
    """All such messages up to this seq are included."""
    next_ms: int | None
    """The publish time of the first message after it, at the earliest; None: there are none."""


class StageFacts(msgspec.Struct, frozen=True):
    """The store's answer about a stage."""

    keys: list[bytes | None]
    deletes: list[int]
    groups: list[int] = []
    """The group number of each row, if it was requested."""


class RowFacts(msgspec.Struct, frozen=True):
    """The store's answer about a row."""

    live: bool
    delete: bool = False
    kept: bool = False
    superseded_by: int = 0
    """The newest revision of its key, if a newer one is known to have ended the row."""
    aside: bool = False
    """It was deferred when it was published."""
