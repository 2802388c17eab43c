"""Cells on a full disk; run in a process of its own, on a small file system of its own.

`test_lmdb_cells.py` runs it as `python -m tests.store.full_disk <scenario> <folder>`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from millrace import errors
from millrace.store.cells import Table
from millrace.store.lmdb_cells import LmdbCells

DISK_BYTES = 32 * 1024 * 1024
BALLAST_BYTES = 8 * 1024 * 1024
SPARE_BYTES = 1024 * 1024


def open_cells(disk: Path) -> LmdbCells:
    return LmdbCells(disk / "cells", ballast_bytes=BALLAST_BYTES, spare_bytes=SPARE_BYTES)


def free_bytes(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def fill(disk: Path, *, left_bytes: int) -> None:
    """Write a file until that much is left."""
    with (disk / "filler").open("ab", buffering=0) as file:
        while (wanted := free_bytes(disk) - left_bytes) > 0:
            try:
                file.write(bytes(min(wanted, 1024 * 1024)))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                return


def empty(disk: Path) -> None:
    (disk / "filler").unlink()


def is_short(cells: LmdbCells) -> bool:
    return cells.short_of_space


def some(count: int, seed: int) -> dict[bytes, bytes | None]:
    """Cells of about 1 KB each."""
    return {b"%d-%06d" % (seed, number): b"%d" % number * 200 for number in range(count)}


def begin(disk: Path) -> LmdbCells:
    cells = open_cells(disk)
    cells.commit({Table.KEYS: some(1_000, 1)})
    assert not is_short(cells)
    assert (disk / "cells" / "ballast").stat().st_size == BALLAST_BYTES
    return cells


def ballast_serves(disk: Path, *, left_bytes: int) -> None:
    cells = begin(disk)
    fill(disk, left_bytes=left_bytes)
    more = some(3_000, 2)
    cells.commit({Table.KEYS: more, Table.META: {b"a": b"1"}})
    assert is_short(cells)
    assert not (disk / "cells" / "ballast").exists()
    assert cells.get(Table.KEYS, list(more)) == list(more.values())
    cells.maintain()
    assert is_short(cells), "the space has not come back"
    assert cells.check() == []
    cells.close()

    cells = open_cells(disk)
    assert is_short(cells)
    assert cells.get(Table.KEYS, list(more)) == list(more.values())
    cells.commit({Table.KEYS: dict.fromkeys(more)})
    assert is_short(cells)
    empty(disk)
    cells.maintain()
    assert not is_short(cells)
    assert (disk / "cells" / "ballast").stat().st_size == BALLAST_BYTES
    assert cells.get(Table.META, [b"a"]) == [b"1"]
    assert cells.check() == []
    cells.close()


def whole_write_fails(disk: Path) -> None:
    ballast_serves(disk, left_bytes=0)


def part_of_a_write_fits(disk: Path) -> None:
    """LMDB calls this an input/output error."""
    ballast_serves(disk, left_bytes=100 * 1024)


def a_sync_fails(disk: Path) -> None:
    """LMDB says of it what it says of a write that found room in part; it is never tried again."""
    cells = begin(disk)
    fill(disk, left_bytes=100 * 1024)
    error = OSError(errno.EIO, "the test's disk has lost a page")
    with mock.patch.object(os, "fdatasync", side_effect=error):
        try:
            cells.commit({Table.KEYS: some(3_000, 2)})
        except errors.DiskFailed:
            pass
        else:
            raise AssertionError("it was tried again")
    assert (disk / "cells" / "ballast").exists(), "there was no second attempt"
    try:
        cells.commit({Table.KEYS: {b"small": b"1"}})
    except errors.DiskFailed:
        pass
    else:
        raise AssertionError("the cells must be opened again")
    cells.close()
    assert open_cells(disk).check() == []


def nothing_helps(disk: Path) -> None:
    cells = begin(disk)
    fill(disk, left_bytes=0)
    more = some(12_000, 2)
    for _ in range(2):
        try:
            cells.commit({Table.KEYS: more, Table.META: {b"a": b"1"}})
        except errors.Full:
            pass
        else:
            raise AssertionError("there was no room")
        assert is_short(cells)
        assert cells.get(Table.KEYS, list(more)) == [None] * len(more)
        assert cells.get(Table.META, [b"a"]) == [None]
        assert cells.check() == []
    cells.commit({Table.KEYS: {b"small": b"1"}})
    assert cells.get(Table.KEYS, [b"small"]) == [b"1"]
    empty(disk)
    cells.maintain()
    assert not is_short(cells)
    cells.commit({Table.KEYS: more})
    assert cells.get(Table.KEYS, list(more)) == list(more.values())
    assert cells.check() == []
    cells.close()


def full_before_it_is_needed(disk: Path) -> None:
    cells = begin(disk)
    fill(disk, left_bytes=SPARE_BYTES - 4096)
    cells.maintain()
    assert is_short(cells)
    assert (disk / "cells" / "ballast").exists(), "the ballast is not touched by a look"
    empty(disk)
    cells.maintain()
    assert not is_short(cells)
    cells.close()


def made_on_a_small_disk(disk: Path) -> None:
    fill(disk, left_bytes=BALLAST_BYTES)
    cells = open_cells(disk)
    assert is_short(cells)
    cells.commit({Table.META: {b"a": b"1"}})
    cells.close()
    empty(disk)
    cells = open_cells(disk)
    assert not is_short(cells)
    assert cells.get(Table.META, [b"a"]) == [b"1"]
    cells.close()


def without_its_lock_file(disk: Path) -> None:
    """As after a copy; LMDB makes the file anew, and writes to it through a map."""
    begin(disk).close()
    (disk / "cells" / "lock.mdb").unlink()
    fill(disk, left_bytes=0)
    cells = open_cells(disk)
    assert is_short(cells)
    assert cells.check() == []
    cells.close()


SCENARIOS: dict[str, Callable[[Path], None]] = {
    scenario.__name__: scenario
    for scenario in (
        whole_write_fails,
        part_of_a_write_fits,
        nothing_helps,
        a_sync_fails,
        full_before_it_is_needed,
        made_on_a_small_disk,
        without_its_lock_file,
    )
}


if __name__ == "__main__":
    SCENARIOS[sys.argv[1]](Path(sys.argv[2]))
