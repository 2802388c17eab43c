"""Whether everything is there that the index refers to.

An index may be older than the log and the files beside it: it was restored alone, or copied while
an engine ran, or LMDB fell back to the commit before. As long as the log still has its mark, that
is no harm, unless something that it refers to was moved since, and its old home given up: then what
looks like a file left unfinished may be the only copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from millrace import limits
from millrace.errors import Corrupt
from millrace.store.cells import Cells, Table
from millrace.store.place import decode_place
from millrace.store.sealed import file_name
from millrace.store.tables import extent_low, extents_range, number_of, shard_of
from millrace.wal.files import Disk

_HOMES_END = 1 << 63
"""Above every generation."""


def check_generations(cells: Cells, there: Collection[int], unwanted: Collection[int]) -> None:
    """Make sure that the log has every generation in which rows lie by the index's word.

    `unwanted`: numbers of shards whose rows nobody can ask for any more.

    Raises:
        Corrupt: one is gone.
    """
    for home in _generations(cells):
        if home not in there and _has_rows(cells, home, unwanted):
            raise Corrupt(
                f"log generation {home} is gone, but the index says that rows lie in it: the index "
                "is older than the log. Nothing was changed. Restore the whole folder from a "
                "backup or from a replica, not a part of it",
                field="index",
            )


def check_files(disk: Disk, numbers: Iterable[int]) -> None:
    """Make sure that these sealed files are there, before any other is removed.

    Raises:
        Corrupt: one is gone.
    """
    for number in numbers:
        if not disk.exists(file_name(number)):
            raise Corrupt(
                f"{file_name(number)} is gone, but the index says that rows lie in it, and there "
                "are files that it does not know: it is older than they are. Nothing was removed. "
                "Restore the whole folder from a backup or from a replica, not a part of it",
                field=file_name(number),
            )


def _generations(cells: Cells) -> Iterator[int]:
    """Every generation that the index has extents of, in steps over all of its others."""
    low = 0
    end, _ = extents_range(_HOMES_END, sealed=False)
    while True:
        begin, _ = extents_range(low, sealed=False)
        found = cells.range(Table.BLOCKS, begin, end, limit=1)
        if not found:
            return
        home = number_of(found[0][0][9:17])
        yield home
        low = home + 1


def _has_rows(cells: Cells, home: int, unwanted: Collection[int]) -> bool:
    """An extent alone proves nothing: it may be left of places that have moved since."""
    low, high = extents_range(home, sealed=False)
    for extent, last in _all(cells, low, high):
        for block, value in _all(cells, extent_low(extent), last + b"\0"):
            place = decode_place(value)
            if not place.sealed and place.home == home and shard_of(block) not in unwanted:
                return True
    return False


def _all(cells: Cells, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
    while True:
        found = cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP)
        yield from found
        if len(found) < limits.PLACES_STEP:
            return
        low = found[-1][0] + b"\0"
