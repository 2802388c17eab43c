"""Scans on other threads, concurrent with folding, checkpoints, sealing and recycling."""

from __future__ import annotations

import threading
from pathlib import Path

from millrace import limits
from millrace.core.format.block import Block
from millrace.core.model import Death
from millrace.core.state.fold import Reader
from millrace.store.cells import Table
from millrace.store.lmdb_cells import LmdbCells
from millrace.wal.disk import RealDisk
from millrace.wal.segment import LogShape
from tests.support.contracts.store_subject import DiskSubject, simulated
from tests.support.contracts.story import SHARD, Story

ROUNDS = 25
ROWS = 400


def test_a_pinned_scan_sees_the_same_rows_whatever_the_engine_does(tmp_path: Path) -> None:
    """I7, L9: rows move from the log to files and on; a reader must neither miss nor double one."""
    shape = LogShape(segment_bytes=256 * 1024, segments_max=64, segments_free=1, segments_reserve=0)
    subject = DiskSubject(
        RealDisk(tmp_path),
        lambda: LmdbCells(tmp_path / "index", map_bytes=1 << 28, ballast_bytes=4096),
        shape=shape,
    )
    story = Story(lambda: subject)
    for _ in range(8):
        story.bodies(ROWS // 8, 500)
    story.die(Death.SETTLED, *range(1, ROWS, 7))
    story.pin(1)
    expected = _seqs(subject, Reader(1))
    failures: list[BaseException] = []
    scans = [0]
    is_over = threading.Event()

    def read() -> None:
        try:
            while not is_over.is_set():
                assert _seqs(subject, Reader(1)) == expected
                scans[0] += 1
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    alive = [seq for seq in range(1, ROWS + 1) if seq % 7 != 1]
    for at in range(ROUNDS):
        story.bodies(50, 1_000)
        story.die(
            Death.SETTLED, *range(story.last - 49, story.last - 3), *alive[at * 13 : at * 13 + 13]
        )
        if at % 3 == 0:
            subject.seal_all()
        elif at % 3 == 1:
            story.pin(at + 2)
            subject.checkpoint()
            story.unpin(at + 2)
        else:
            subject.turn_over()
            subject.checkpoint()
    is_over.set()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert scans[0] > 0
    assert _seqs(subject, Reader(1)) == expected
    subject.close()


def _seqs(subject: DiskSubject, reader: Reader) -> list[int]:
    found: list[int] = []
    for batch in subject.store.scan(SHARD, 0, ROWS, reader):
        found += batch.column("seq").to_numpy().tolist()
    return found


def test_marks_of_rows_that_are_gone_go_too() -> None:
    """A queue that has seen a billion messages would otherwise keep the marks of all of them."""
    subject = simulated()
    story = Story(lambda: subject)
    rows = 3 * limits.CHUNK_ROWS
    for _ in range(3):
        story.last += limits.CHUNK_ROWS
        block = Block.of_bodies([b"x"] * limits.CHUNK_ROWS)
        story.batch([block], firsts=[story.last - limits.CHUNK_ROWS + 1])
        subject.checkpoint()
    story.die(Death.SETTLED, *range(1, rows - 9))
    subject.seal_all()
    for _ in range(3):
        subject.checkpoint()
    cells = subject.cells
    keys = [key for key, _ in cells.range(Table.DEATHS, b"", b"\xff" * 30, limit=100)]
    assert len(keys) == 1
    subject.reopen()
    assert subject.store.hidden(SHARD, 1, rows).max() == rows - 10
    assert [
        row.seq for row in subject.store.rows(SHARD, subject.store.hidden(SHARD, 1, rows))
    ] == []
    seen = subject.store.scan(SHARD, 0, rows, Reader())
    assert [batch.num_rows for batch in seen] == [10]
    story.bodies(5)
    story.compare()
