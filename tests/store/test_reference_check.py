"""An index that is older than log and files is refused before the only copy of a row is removed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from millrace import limits
from millrace.core.model import Death, NewMessage
from millrace.errors import Corrupt
from millrace.store.cells import Table
from millrace.store.memory_cells import Image, MemoryCells
from millrace.wal.segment import LogShape
from tests.support.contracts.compare_stores import compare
from tests.support.contracts.store_subject import DiskSubject
from tests.support.contracts.story import Story
from tests.support.simulator.disk import SimDisk

SHAPE = LogShape(segment_bytes=32 * 1024, segments_max=64, segments_free=1, segments_reserve=1)


class Folder:
    """A store whose index can be put back to what it was, while log and files stay."""

    def __init__(self) -> None:
        self.disk = SimDisk(random.Random(0))
        self._cells = MemoryCells()
        self.subject = self.open(self._cells.image())
        self.story = Story(lambda: self.subject, keyed=False)

    def open(self, image: Image) -> DiskSubject:
        def cells() -> MemoryCells:
            self._cells = MemoryCells(image)
            return self._cells

        return DiskSubject(self.disk, cells, shape=SHAPE)

    def image(self) -> Image:
        return self._cells.image()

    def rows(self, count: int = 40) -> None:
        """Most of a segment."""
        self.story.publish(*(NewMessage(bytes(500)) for _ in range(count)))

    def sealed(self) -> list[str]:
        return self.disk.names("sealed")


def recycle_the_log(folder: Folder) -> None:
    """The older half of the log is sealed and given up; the newer one, with the mark, stays."""
    assert folder.subject.seal(everything=False)
    for _ in range(6):
        folder.rows()


def rewrite_a_file(folder: Folder) -> None:
    """A sparse file becomes another one; the log stays as it is."""
    folder.story.die(Death.SETTLED, *range(1, 79))
    folder.subject.checkpoint()
    before = folder.sealed()
    while folder.subject.seal(everything=False):
        pass
    folder.subject.checkpoint()
    assert set(folder.sealed()).isdisjoint(before)


@pytest.mark.parametrize("move", [recycle_the_log, rewrite_a_file])
def test_an_index_that_is_older_than_what_it_refers_to_is_refused(
    move: Callable[[Folder], None],
) -> None:
    folder = Folder()
    for _ in range(2):
        folder.rows()
    if move is rewrite_a_file:
        folder.subject.seal_all()
    for _ in range(4):
        folder.rows()
    folder.subject.checkpoint()
    old = folder.image()
    move(folder)
    folder.subject.close()
    before, newest = folder.sealed(), folder.image()
    with pytest.raises(Corrupt, match="is gone, but the index says that rows lie in it"):
        folder.open(old)
    assert folder.sealed() == before, "nothing was removed"
    folder.subject = folder.open(newest)
    compare(folder.subject.store, folder.story.model, [])


def test_an_older_index_serves_where_nothing_was_given_up() -> None:
    folder = Folder()
    for _ in range(3):
        folder.rows()
    folder.subject.checkpoint()
    old = folder.image()
    folder.rows()
    folder.subject.checkpoint()
    folder.subject.close()
    folder.subject = folder.open(old)
    compare(folder.subject.store, folder.story.model, [])


def test_what_is_left_of_a_dropped_shard_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index still names generations that were given up since; nobody can ask for the rows."""
    folder = Folder()
    for _ in range(12):
        folder.rows()
    folder.subject.checkpoint()
    monkeypatch.setattr(limits, "RECLAIM_STEP", 1)
    folder.story.batch(dropped=True)
    folder.subject.seal_all()
    assert not folder.sealed()
    assert folder.image()[Table.BLOCKS], "not all of it was reclaimed"
    folder.subject.reopen()
