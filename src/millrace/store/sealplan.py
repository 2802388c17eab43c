"""What a sealing pass is told, and what it tells: the words between `keep` and `seal`."""

from __future__ import annotations

from typing import NamedTuple

from pyroaring import BitMap64

from millrace.store.packing import Codec
from millrace.store.place import Place
from millrace.store.tables import FileFacts
from millrace.store.unreadable import Unreadable

Home = tuple[bool, int]
"""(Sealed or not, file or generation)."""


class ShardNote(NamedTuple):
    """What is known of a shard when a pass is planned; rows may die later, none comes back."""

    shard: int
    """Whose rows they are; in the index it may have another number."""
    is_keyed: bool
    floor: int
    pins: list[int]
    """Whose marks in the index say that nobody wants a row any more."""
    dead: BitMap64
    """Such marks that are not in the index yet."""
    ended: BitMap64
    """Rows that their keys may still name, as far as that is not in the index yet."""
    codec: Codec | None = None
    """How its rows are compressed from now on."""


class SealPlan(NamedTuple):
    """What one pass shall empty."""

    homes: frozenset[Home]
    extents: list[tuple[bytes, bytes]]
    """Ranges of block keys, first and last, in which the rows of these homes are found."""
    shards: dict[int, ShardNote]
    number: int
    """Of the first file that may be made."""
    rows: dict[int, int]
    """How many rows files were made with that are left alone if enough of them are wanted."""
    room: int | None = None
    """Bytes that may be written; None: as many as the disk has room for."""


class Replaced(NamedTuple):
    """Visible rows that lie elsewhere now, or nowhere."""

    shard: int
    firsts: list[int]
    """The places that count no more."""
    origins: list[Place]
    first: int
    place: Place | None


class Restaged(NamedTuple):
    """Staged rows that lie elsewhere now."""

    shard: int
    stage: str
    ordinal: int
    origin: Place
    place: Place


class SealResult(NamedTuple):
    """What a pass has done."""

    plan: SealPlan
    replaced: list[Replaced]
    restaged: list[Restaged]
    key_drops: dict[int, list[tuple[bytes, int]]]
    files: dict[int, FileFacts]
    spared: dict[int, int]
    """Files that are not sparse after all, with their dead rows: nothing was done to them. Rows
    that the index no longer lists are among the dead: their shard has ended, or their stage."""
    unreadable: list[Unreadable]
    """Rows in the log whose bytes were set aside."""
