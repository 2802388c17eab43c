"""Checks that every log generation and sealed file that the index refers to exists.

An index may be older than the log and the sealed files: it was restored alone, or copied while an
engine ran, or LMDB fell back to the previous commit. As long as the log still has its mark, that is
harmless, unless rows that it refers to were moved since, and their old home reclaimed: then an
apparently unfinished file may be the only copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from millrace import limits
from millrace.errors import Corrupt
from millrace.store.cells import Cells, Table
from millrace.store.index_codec import (
    extent_low,
    extents_range,
    number_of,
    shard_of,
)
from millrace.store.row_location import decode_location
from millrace.store.sealed import file_name
from millrace.wal.disk import Disk

_HOMES_END = 1 << 63
"""An upper bound of all generations."""


def check_generations(cells: Cells, there: Collection[int], unwanted: Collection[int]) -> None:
    """Check that the log has every generation with rows according to the index.

    `unwanted`: numbers of shards whose rows are garbage.

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
    """Check that these sealed files exist, before any other is removed.

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
    """Yield every generation with extents in the index, with one lookup each."""
    low = 0
    end, _ = extents_range(_HOMES_END, sealed=False)
    while True:
        begin, _ = extents_range(low, sealed=False)
        page = cells.range(Table.BLOCKS, begin, end, limit=1)
        if not page:
            return
        home = number_of(page[0][0][9:17])
        yield home
        low = home + 1


def _has_rows(cells: Cells, home: int, unwanted: Collection[int]) -> bool:
    """Return True if rows lie in a generation; its extents may cover moved rows only."""
    low, high = extents_range(home, sealed=False)
    for extent, last in _all(cells, low, high):
        for block, value in _all(cells, extent_low(extent), last + b"\0"):
            location = decode_location(value)
            if not location.sealed and location.home == home and shard_of(block) not in unwanted:
                return True
    return False


def _all(cells: Cells, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
    while True:
        page = cells.range(Table.BLOCKS, low, high, limit=limits.PLACES_STEP)
        yield from page
        if len(page) < limits.PLACES_STEP:
            return
        low = page[-1][0] + b"\0"
