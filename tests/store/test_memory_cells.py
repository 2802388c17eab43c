"""The twin crashes as a disk does: a commit is there as a whole, or not at all."""

from __future__ import annotations

import pytest

from millrace import errors
from millrace.store.cells import Table
from millrace.store.memory_cells import MemoryCells, Room

WRITES: dict[Table, dict[bytes, bytes | None]] = {
    Table.META: {b"a": b"2"},
    Table.KEYS: {b"k": b"2"},
}


def begin() -> MemoryCells:
    cells = MemoryCells()
    cells.commit({Table.META: {b"a": b"1"}, Table.KEYS: {b"k": b"1"}})
    return cells


def values(cells: MemoryCells) -> list[bytes | None]:
    return cells.get(Table.META, [b"a"]) + cells.get(Table.KEYS, [b"k"])


def test_an_image_does_not_change() -> None:
    cells = begin()
    image = cells.image()
    cells.commit(WRITES)
    again = MemoryCells(image)
    assert values(again) == [b"1", b"1"]
    again.commit({Table.META: {b"a": None}})
    assert values(MemoryCells(image)) == [b"1", b"1"]
    assert values(cells) == [b"2", b"2"]
    with pytest.raises(TypeError):
        image[Table.META][b"a"] = b"3"  # type: ignore[index]


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_failed_commit_is_whole_or_not_there(*, is_applied: bool) -> None:
    cells = begin()
    cells.fail_next(is_applied=is_applied)
    with pytest.raises(errors.DiskFailed):
        cells.commit(WRITES)
    with pytest.raises(errors.DiskFailed):
        cells.get(Table.META, [b"a"])
    with pytest.raises(errors.DiskFailed):
        cells.commit({Table.META: {b"a": b"3"}})
    expected = b"2" if is_applied else b"1"
    assert values(MemoryCells(cells.image())) == [expected, expected]


def test_a_full_disk() -> None:
    cells = begin()
    cells.room = Room.BALLAST
    cells.commit({Table.META: {b"a": b"2"}})
    assert cells.short_of_space
    cells.room = Room.NONE
    with pytest.raises(errors.Full):
        cells.commit({Table.META: {b"a": b"3"}})
    assert values(cells) == [b"2", b"1"]
    cells.room = Room.AMPLE
    cells.commit({Table.META: {b"a": b"4"}})
    assert cells.short_of_space, "until someone looks"
    cells.maintain()
    assert not is_short(cells)


def is_short(cells: MemoryCells) -> bool:
    return cells.short_of_space
