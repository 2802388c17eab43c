"""Sealed files: immutable, self-describing Arrow streams; see `docs/formats/sealed.md`.

Rule 1: a file is synced, then its folder, before anything refers to it (F1); it is never changed.
Rule 2: it is written and synced in small steps (F3), so that the log's own sync never waits long.
Rule 3: a record batch holds rows of one shard in seq order.
Rule 4: the checksum of a record batch is verified on the first read. A mismatch raises `Corrupt`;
no batch is skipped.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
from crc32c import crc32c

from millrace import limits
from millrace.core.format.block import SCHEMA
from millrace.errors import Corrupt, NotFound
from millrace.store.compression import Codec, compress_batch, decompress_batch
from millrace.store.row_location import COMPRESSED, RowLocation
from millrace.wal.disk import Disk

FOLDER = "sealed"
SUFFIX = ".arrow"

SEALED_SCHEMA = pa.schema([SCHEMA.field(at) for at in range(1, len(SCHEMA.names))])
"""The common schema without the shard, which is the same for a whole record batch."""

MAGIC = b"MRSEAL1\0"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_LINE = struct.Struct("<QQQIIQQI4x")
"""A footer entry: shard, first seq, last seq, rows, flags, offset, length, checksum."""
_TAIL = struct.Struct("<QII8s")
"""Offset of the first entry, number of entries, checksum of all entries and these two, magic."""


class Moved(Exception):
    """The rows were moved since they were located: locate them again."""


class BatchEntry(NamedTuple):
    """The footer entry of one record batch."""

    shard: int
    first: int
    last: int
    rows: int
    flags: int
    offset: int
    length: int
    crc: int


def file_name(number: int) -> str:
    return f"{FOLDER}/{number:012d}{SUFFIX}"


def file_number(name: str) -> int | None:
    """Return the number of the sealed file with this name, or None if it is another file."""
    stem = name.removesuffix(SUFFIX)
    return int(stem) if stem != name and len(stem) == 12 and stem.isdigit() else None


class SealedWriter:
    """Writes one file, durable when `close` returns; nothing refers to it before that."""

    def __init__(self, disk: Disk, number: int, pause: Callable[[], None]) -> None:
        self.number = number
        self.rows = 0
        self._disk = disk
        self._pause = pause
        self._name = file_name(number)
        self._file = disk.create(self._name)
        self._waiting: list[memoryview] = []
        self._waiting_bytes = 0
        self._written = 0
        self._unsynced = 0
        self._lines: list[BatchEntry] = []
        self.size = 0
        self._put(SEALED_SCHEMA.serialize())

    def add(
        self,
        shard: int,
        first: int,
        span: int,
        batch: pa.RecordBatch,
        flags: int,
        times: list[int],
        codec: Codec | None = None,
    ) -> RowLocation:
        """Append a record batch; its location is valid once the file is closed."""
        message, is_packed = compress_batch(batch, codec)
        flags |= COMPRESSED if is_packed else 0
        crc = crc32c(message)
        location = RowLocation(
            self.number,
            self.size,
            message.size,
            batch.num_rows,
            span,
            times[0],
            times[-1],
            flags,
            sealed=True,
            number=len(self._lines),
            crc=crc,
        )
        self._lines.append(
            BatchEntry(
                shard,
                first,
                first + span - 1,
                batch.num_rows,
                flags,
                self.size,
                message.size,
                crc,
            )
        )
        self.rows += batch.num_rows
        self._put(message)
        return location

    def close(self) -> None:
        """End the stream, and make the file and its name durable."""
        self._put(_END_OF_STREAM)
        lines = b"".join(_LINE.pack(*line) for line in self._lines)
        head = struct.pack("<QI", self.size, len(self._lines))
        crc = crc32c(head, crc32c(lines))
        self._put(lines + head + struct.pack("<I8s", crc, MAGIC))
        self._write()
        self._file.sync_all()
        self._file.close()
        self._disk.sync_folder(FOLDER)

    def abandon(self) -> None:
        """Remove the file, which is not needed."""
        self._file.close()
        self._disk.remove(self._name)

    def _put(self, data: bytes | pa.Buffer) -> None:
        view = memoryview(data)
        self.size += view.nbytes
        while view.nbytes:
            room = limits.SEAL_WRITE_BYTES - self._waiting_bytes
            self._waiting.append(view[:room])
            self._waiting_bytes += self._waiting[-1].nbytes
            view = view[room:]
            if self._waiting_bytes == limits.SEAL_WRITE_BYTES:
                self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        self._file.write(self._waiting, self._written)
        self._written += self._waiting_bytes
        self._unsynced += self._waiting_bytes
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._unsynced >= limits.SEAL_SYNC_BYTES:
            self._file.sync()
            self._unsynced = 0
            self._pause()


class SealedFile:
    """An open file: its memory map, and the record batches whose checksums were verified."""

    def __init__(self, disk: Disk, number: int) -> None:
        self.name = file_name(number)
        try:
            file = disk.open(self.name)
        except NotFound as error:
            raise Moved from error
        try:
            self._map = pa.py_buffer(file.map())
        finally:
            file.close()
        self._verified: set[int] = set()

    def read(self, location: RowLocation, shard: int) -> pa.RecordBatch:
        """Return the record batch, a view of the file's own bytes, which it keeps mapped."""
        data = self.message(location, shard)
        try:
            return decompress_batch(
                data, SEALED_SCHEMA, compressed=bool(location.flags & COMPRESSED)
            )
        except Corrupt as error:
            raise self._damaged(location, shard) from error

    def message(self, location: RowLocation, shard: int) -> pa.Buffer:
        """Return the IPC message of the record batch, a view of the file, which it keeps mapped."""
        if location.offset not in self._verified:
            self.verify(location, shard)
        return self._map.slice(location.offset, location.length)

    def verify(self, location: RowLocation, shard: int) -> None:
        """Verify the checksum of the batch; this reads it from the disk, without the GIL.

        Raises:
            Corrupt: the checksum does not match.
        """
        is_there = location.offset + location.length <= self._map.size
        if (
            not is_there
            or crc32c(self._map.slice(location.offset, location.length)) != location.crc
        ):
            raise self._damaged(location, shard)
        self._verified.add(location.offset)

    def _damaged(self, location: RowLocation, shard: int) -> Corrupt:
        return Corrupt(
            f"{self.name}, offset {location.offset}: record batch {location.number} of shard "
            f"{shard} is damaged; nothing was skipped. Restore the file from a backup, or resync "
            "the shard from a replica",
            field=self.name,
        )


class SealedFiles:
    """An LRU cache of open files; on any thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: OrderedDict[int, SealedFile] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, number: int) -> SealedFile:
        """Return the file, opened if need be.

        Raises:
            Moved: a file with this number does not exist.
        """
        with self._lock:
            file = self._open.get(number)
            if file is not None:
                self._open.move_to_end(number)
                return file
        opened = SealedFile(self._disk, number)
        with self._lock:
            file = self._open.setdefault(number, opened)
            while len(self._open) > limits.OPEN_FILES_MAX:
                self._open.popitem(last=False)
        return file

    def forget(self, number: int) -> None:
        """Evict a file that is being removed; readers keep it alive."""
        with self._lock:
            self._open.pop(number, None)

    def close(self) -> None:
        with self._lock:
            self._open.clear()


def footer_checksum(disk: Disk, number: int) -> int:
    """Return a checksum that covers the whole file through the checksums of its footer."""
    file = disk.open(file_name(number))
    try:
        return crc32c(file.read(_TAIL.size, max(file.size - _TAIL.size, 0)))
    finally:
        file.close()


def read_footer(disk: Disk, number: int) -> list[BatchEntry]:
    """Read the footer entries of a file.

    Raises:
        Corrupt: the footer is damaged, or the file was truncated.
    """
    name = file_name(number)
    file = disk.open(name)
    try:
        size = file.size
        tail = file.read(_TAIL.size, max(size - _TAIL.size, 0))
        if len(tail) == _TAIL.size:
            offset, count, crc, magic = _TAIL.unpack(tail)
            if magic == MAGIC and offset + count * _LINE.size + _TAIL.size == size:
                lines = file.read(count * _LINE.size, offset)
                if crc32c(tail[:12], crc32c(lines)) == crc:
                    return [BatchEntry(*fields) for fields in _LINE.iter_unpack(lines)]
    finally:
        file.close()
    raise Corrupt(f"{name}: its trailer is damaged", field=name)
