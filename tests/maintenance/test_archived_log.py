"""Truncating an archived log: whole records before the cut, and part of the last one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millrace.core.changes import Batch, Changes, Entry
from millrace.core.format.codec import decode_entries, encode_entry
from millrace.core.model import Epoch, GroupId, History, Index, Millis, ShardId
from millrace.journal.local import LOCAL
from millrace.maintenance import archived_log
from millrace.maintenance.archived_log import LogPiece, LogWalk
from millrace.maintenance.manifest import Point
from millrace.maintenance.restore import write_log
from millrace.wal.disk import RealDisk
from millrace.wal.replay import Replay
from millrace.wal.segment import LogShape
from millrace.wal.write_ahead_log import WriteAheadLog

OTHER = GroupId(7)

RECORDS = [[(LOCAL, 1)], [(LOCAL, 2), (OTHER, 1), (LOCAL, 3), (LOCAL, 4)], [(LOCAL, 5)]]
"""Group and index of the entries of each record; the time is ten times the index."""


def entry(group: GroupId, index: int) -> Entry:
    changes = Changes(cells=[(1, b"key", b"%d" % index)])
    batch = Batch(ShardId(1), Index(index), Millis(index * 10), changes, [])
    return Entry(group, Epoch(1), Index(index), History(bytes(16)), [batch])


def write(folder: Path) -> list[LogPiece]:
    """Write a log with two generations."""
    disk = RealDisk(folder)
    shape = LogShape(segment_bytes=64 * 1024, segments_max=8)
    log = WriteAheadLog.open(Replay(disk), shape, chance=os.urandom)
    for record in RECORDS:
        buffers = []
        size = 0
        for group, index in record:
            data = b"".join(encode_entry(entry(group, index), size))
            size += len(data)
            buffers.append(data)
        log.append(buffers)
        if record is RECORDS[0]:
            log.roll()
    log.close()
    found = [archived_log.read_piece(disk, f"log/{name}") for name in disk.names("log")]
    return archived_log.merge_pieces(piece for piece in found if piece is not None)


def restored(folder: Path) -> list[tuple[GroupId, int]]:
    replay = Replay(RealDisk(folder))
    entries = [one for _, payload in replay for one in decode_entries(payload)]
    replay.close()
    return [(one.group, one.index) for one in entries]


@pytest.mark.parametrize(
    ("index", "time_ms", "count"),
    [
        (0, None, 0),
        (1, None, 1),
        (2, None, 3),
        (3, None, 4),
        (4, None, 5),
        (5, None, 6),
        (None, 9, 0),
        (None, 10, 1),
        (None, 29, 3),
        (None, 30, 4),
        (None, 99, 6),
        (None, None, 6),
    ],
)
def test_entries_up_to_the_point_and_no_other(
    tmp_path: Path, index: int | None, time_ms: int | None, count: int
) -> None:
    pieces = write(tmp_path / "log-of")
    found = archived_log.find_cut(LogWalk(pieces), Point(0, 0), None, index=index, time_ms=time_ms)
    disk = RealDisk(tmp_path / "again")
    disk.make_folder("log")
    write_log(pieces, found, disk)
    everything = [one for record in RECORDS for one in record]
    assert restored(tmp_path / "again") == everything[:count]
    last = max((index for group, index in everything[:count] if group == LOCAL), default=0)
    assert found.point.index == last
    # It can be opened and continued.
    log = WriteAheadLog.open(Replay(disk), chance=os.urandom)
    log.append([b"".join(encode_entry(entry(LOCAL, last + 1), 0))])
    log.close()
    assert restored(tmp_path / "again") == [*everything[:count], (LOCAL, last + 1)]
