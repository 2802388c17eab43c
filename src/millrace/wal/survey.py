"""What segments a folder holds, and which of them are needed.

Rule 1: a segment without a whole header was never used, or its first life ended before it began: a
header is durable before the first record, and the next one takes its place in one piece. If a whole
record is there all the same, the header was damaged, and the folder is refused.
Rule 2: a header that is older than the segment's first record, a file that was cut short and a
segment of another log are damage, too.
"""

from __future__ import annotations

from contextlib import ExitStack

from millrace import errors, limits
from millrace.wal.files import Disk, File
from millrace.wal.record import (
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    SEGMENT_FAMILY,
    SEGMENT_MAGIC,
    SegmentHeader,
    decode_record,
    decode_segment,
    is_whole,
)
from millrace.wal.segment import Segment
from millrace.wal.segment_pool import SEGMENT_SUFFIX

SECTOR = limits.SECTOR_BYTES


class Survey:
    """The segments of `folder`; those of generations below `needed_from` are free.

    Raises:
        Corrupt: the folder must not be used; the message says where and what to do.
    """

    def __init__(self, disk: Disk, folder: str, *, needed_from: int) -> None:
        self.used: list[Segment] = []
        """Segments that are needed, oldest generation first; `end` is not known yet."""
        self.free: list[Segment] = []
        """Segments that hold nothing that is needed."""
        self.log_id: bytes | None = None
        self.number = 0
        """The highest number in a file's name."""
        self.generation = 0
        """The highest generation that was ever begun."""
        self._needed_from = needed_from
        with ExitStack() as stack:
            for name in disk.names(folder):
                stem = name.removesuffix(SEGMENT_SUFFIX)
                if stem != name and stem.isdigit():
                    self.number = max(self.number, int(stem))
                    file = disk.open(f"{folder}/{name}")
                    stack.callback(file.close)
                    self._add(file)
            self.used.sort(key=lambda segment: segment.generation)
            for one, other in zip(self.used, self.used[1:], strict=False):
                if one.generation == other.generation:
                    raise corrupt(other.name, 0, f"it has the same generation as {one.name}")
            stack.pop_all()

    def close(self) -> None:
        """Close the files."""
        for segment in (*self.used, *self.free):
            segment.file.close()

    def _add(self, file: File) -> None:
        head, size = file.read(SECTOR, 0), file.size
        header = decode_segment(head)
        if header is not None:
            self._check(file, header, size)
        elif head.startswith(SEGMENT_FAMILY) and not head.startswith(SEGMENT_MAGIC):
            raise corrupt(file.name, 0, "its format is that of a later version, or damaged")
        oldest = self._needed_from if header is None else header.generation + 1
        if header is None:
            found = _find_record(file, size, oldest)
        else:
            # Every generation with records has one in the first place.
            found = SECTOR if _is_record(file, size, SECTOR, oldest) else None
        if found is not None:
            what = f"its header is damaged, but records follow it, at offset {found}"
            raise corrupt(file.name, 0, what)
        segment = Segment(file, header, size=size, end=size)
        self.generation = max(self.generation, segment.generation)
        if header is not None and header.generation >= self._needed_from:
            self.used.append(segment)
        else:
            self.free.append(segment)

    def _check(self, file: File, header: SegmentHeader, size: int) -> None:
        if size != header.size:
            raise corrupt(file.name, size, f"it had {header.size} bytes and has {size}")
        if self.log_id not in (None, header.log_id):
            raise corrupt(file.name, 0, "it belongs to another log")
        self.log_id = header.log_id


def _find_record(file: File, size: int, oldest: int) -> int | None:
    """Return where a whole record of generation `oldest` or later begins, if there is one.

    A segment that was never used holds zeros alone; if it begins with some MiB of them, the rest is
    not read.
    """
    for offset in range(0, size, limits.REPLAY_READ_BYTES):
        piece = file.read(min(limits.REPLAY_READ_BYTES, size - offset), offset)
        if offset == 0 and piece == bytes(len(piece)):
            return None
        firsts = piece[::SECTOR]
        at = firsts.find(RECORD_MAGIC[:1])
        while at >= 0:
            if _is_record(file, size, offset + at * SECTOR, oldest):
                return offset + at * SECTOR
            at = firsts.find(RECORD_MAGIC[:1], at + 1)
    return None


def _is_record(file: File, size: int, offset: int, oldest: int) -> bool:
    """Tell whether a whole record of generation `oldest` or later stands there."""
    data = file.read(RECORD_HEADER_BYTES, offset)
    record = decode_record(data)
    if record is None or record.generation < oldest or record.length > size:
        return False
    payload = file.read(record.length, offset + RECORD_HEADER_BYTES)
    return is_whole(record, memoryview(data), payload)


def corrupt(name: str, offset: int, what: str) -> errors.Corrupt:
    """Say where the damage is and how to go on."""
    return errors.Corrupt(
        f"{name}, offset {offset}: {what}. Nothing was changed. Restore the folder from a backup "
        "or from a replica; `millrace dump` shows what can still be read",
        field=name,
    )
