"""The ledger: what the log must hold, learnt from the writes that pass by on their way to the disk.

It sits between the engine and its disk, takes every record apart, and folds what was synced into a
naive store of its own. What the engine serves after a restart must be what the ledger has folded:
everything that was synced, and the one record that was in flight, whole or not at all.

This is I1, I2 and I12 from below, and `fold(everything) = what is served` for the store, its
checkpoints, its sealed files and recovery.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c
from pyroaring import BitMap64

from millrace.core.cells import Kind, PinCell
from millrace.core.changes import Entry, EntryKind
from millrace.core.format.codec import decode_cell, decode_entries
from millrace.core.model import GroupId, ShardId
from millrace.core.state.fold import Reader
from millrace.core.state.view import number
from millrace.errors import Corrupt
from millrace.store.base import Store
from millrace.store.memory_store import MemoryStore
from millrace.wal.disk import Disk, File, Lock
from millrace.wal.record import (
    DATA,
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    SEGMENT_MAGIC,
    RecordHeader,
    decode_record,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Spot(NamedTuple):
    """A range of a file."""

    name: str
    offset: int
    length: int

    def holds(self, name: str, offset: int) -> bool:
        return name == self.name and self.offset <= offset < self.offset + self.length


class Ledger:
    """Every record that was ever synced, folded; and the one that may or may not be there."""

    def __init__(self, group: GroupId) -> None:
        self.store = MemoryStore()
        self.violations: list[str] = []
        self.records = 0
        self.sum = 0
        """Of all bytes that were ever written."""
        self._group = group
        self._known: dict[int, int] = {}
        """Number of a synced record → its checksum."""
        self._doubtful: tuple[Spot, RecordHeader, list[Entry]] | None = None
        self.last = Spot("", 0, 0)
        """Where the last synced record lies."""
        self.is_proven = True
        """Whether something synced after it tells that it was whole: without that, damage to it
        cannot be told from a torn write."""
        self.is_mark = False
        """Whether it is the mark of the end, which holds nothing, and which nothing proves."""
        self._begun = ""
        self._epoch = 0

    def new_life(self) -> None:
        """The process has ended. What was in doubt is written again if the next one finds it."""
        self._doubtful, self._begun = None, ""

    def wrote(self, name: str, data: bytes, offset: int) -> None:
        """A file was written to; whether the bytes will stay is not known yet."""
        self.sum = crc32c(data, self.sum)
        if not name.startswith("log/"):
            return
        if data.startswith(SEGMENT_MAGIC):
            self._begun = name
        if not data.startswith(RECORD_MAGIC):
            return
        header = decode_record(data)
        assert header is not None, "the magic was there"
        known = self._known.get(header.serial)
        if known is not None:
            if known != header.crc:
                self._say(f"I1: record {header.serial} was synced, and another one is written")
            return
        payload = memoryview(data)[RECORD_HEADER_BYTES : RECORD_HEADER_BYTES + header.length]
        entries = decode_entries(payload) if header.kind == DATA else []
        self._doubtful = (Spot(name, offset, len(data)), header, entries)

    def synced(self, name: str) -> None:
        """A file was synced: the record that was written to it is there for ever."""
        if self._begun == name:
            self._begun, self.is_proven, self.is_mark = "", True, False
        if self._doubtful is None or self._doubtful[0].name != name:
            return
        self.last, header, entries = self._doubtful
        self.is_proven = self.is_mark = header.kind != DATA
        self._doubtful = None
        if header.serial != len(self._known) + 1:
            self._say(f"I1: record {header.serial} follows {len(self._known)} synced ones")
        self._known[header.serial] = header.crc
        self.records += 1
        for entry in entries:
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        if entry.kind is EntryKind.FACT:
            if entry.group == self._group:
                if entry.epoch <= self._epoch:
                    self._say(f"I9: epoch {entry.epoch} begins after {self._epoch}")
                self._epoch = entry.epoch
            return
        if entry.group != self._group or entry.kind is not EntryKind.DATA:
            return
        if entry.epoch != self._epoch:
            self._say(f"I4: entry {entry.index} is of epoch {entry.epoch}, not {self._epoch}")
        expected = self.store.applied(entry.group) + 1
        if entry.index != expected:
            self._say(f"I9: entry {entry.index} was written where {expected} is due")
            return
        self.store.fold(entry, None)

    def _say(self, violation: str) -> None:
        self.violations.append(violation)

    # --- Comparing -----------------------------------------------------------------------------

    def compare(self, store: Store, refused: set[ShardId] | None = None) -> list[str]:
        """What the store serves otherwise than it should; nothing if it is right.

        Shards of which something is damaged are put into `refused`, if that is given.
        """
        mine = self.store
        if store.applied(self._group) != mine.applied(self._group):
            return [
                f"I1: entry {mine.applied(self._group)} was synced, but "
                f"{store.applied(self._group)} is the last that is served"
            ]
        if store.shards() != mine.shards():
            return [f"I12: shards are {store.shards()}, not {mine.shards()}"]
        found: list[str] = []
        for shard in mine.shards():
            try:
                found += _compare_shard(shard, store, mine)
            except Corrupt:
                if refused is None:
                    raise
                refused.add(shard)
        return found


def _compare_shard(shard: ShardId, theirs: Store, mine: MemoryStore) -> list[str]:
    found: list[str] = []

    def differ(what: str, one: object, other: object) -> None:
        if one != other:
            found.append(f"I12: {what} of {shard}: {_short(one)} instead of {_short(other)}")

    meta = mine.meta(shard)
    assert meta is not None
    differ("meta", theirs.meta(shard), meta)
    cells = list(mine.cells(shard))
    differ("cells", list(theirs.cells(shard)), cells)
    if mine.lost(shard):
        # Nobody can read them: whoever wrote them checks that they are not passed over.
        return found
    readers = [Reader(), Reader(retain=True)]
    for kind, key, value in cells:
        cell = decode_cell(kind, value)
        if isinstance(cell, PinCell):
            readers.append(Reader(number(key), cell.retain))
        if kind is Kind.STAGE:
            name = key.decode()
            here, there = (one.stage(shard, name, grouped=True) for one in (mine, theirs))
            differ(f"stage {name}", there, here)
    seen: dict[int, bytes | None] = {}
    for reader in readers:
        rows = read_rows(mine, shard, reader)
        found += _compare_rows(f"{shard} for {reader}", read_rows(theirs, shard, reader), rows)
        seen |= {seq: row["key"] for seq, row in rows.items()}  # type: ignore[misc]
    wanted = BitMap64(seen)
    if wanted:
        differ("single rows", theirs.rows(shard, wanted), mine.rows(shard, wanted))
    keys = sorted({key for key in seen.values() if key is not None})
    if keys and meta.keyed:
        differ("keys", theirs.find(shard, keys), mine.find(shard, keys))
    if meta.last_seq:
        low = max(1, meta.last_seq - 200)
        differ(
            "hidden",
            theirs.hidden(shard, low, meta.last_seq),
            mine.hidden(shard, low, meta.last_seq),
        )
    return found


def read_rows(store: Store, shard: ShardId, reader: Reader) -> dict[int, dict[str, object]]:
    """All rows that a reader sees, by seq."""
    meta = store.meta(shard)
    last = meta.last_seq if meta is not None else 0
    batches = store.scan(shard, 0, last, reader)
    return {row["seq"]: row for batch in batches for row in batch.to_pylist()}


def _compare_rows(
    where: str, theirs: dict[int, dict[str, object]], mine: dict[int, dict[str, object]]
) -> list[str]:
    if list(theirs.items()) == list(mine.items()):
        return []
    changed = [seq for seq in mine if seq in theirs and mine[seq] != theirs[seq]]
    return [
        f"I12: rows of {where}: missing {[seq for seq in mine if seq not in theirs]}, "
        f"too many {[seq for seq in theirs if seq not in mine]}, changed {changed}, "
        f"in order: {list(theirs) == sorted(theirs)}"
    ]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:400]} … {text[-180:]}"


class LedgerDisk:
    """A disk that tells the ledger of every write and sync that has succeeded."""

    def __init__(self, disk: Disk, ledger: Ledger) -> None:
        self._disk = disk
        self.ledger: Ledger | None = ledger
        """None once the process has ended: what it still tries while it is taken apart does not
        reach the disk, and must not be taken for a write of the next one."""

    def open(self, name: str, *, create_bytes: int | None = None) -> File:
        return LedgerFile(self._disk.open(name, create_bytes=create_bytes), self)

    def create(self, name: str) -> File:
        return LedgerFile(self._disk.create(name), self)

    def exists(self, name: str) -> bool:
        return self._disk.exists(name)

    def names(self, folder: str) -> list[str]:
        return self._disk.names(folder)

    def remove(self, name: str) -> None:
        self._disk.remove(name)

    def rename(self, name: str, new: str) -> None:
        self._disk.rename(name, new)

    def link(self, name: str, new: str) -> None:
        self._disk.link(name, new)

    def make_folder(self, name: str) -> None:
        self._disk.make_folder(name)

    def sync_folder(self, name: str) -> None:
        self._disk.sync_folder(name)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def identity(self, name: str) -> tuple[int, int]:
        return self._disk.identity(name)

    def lock(self, name: str) -> Lock:
        return self._disk.lock(name)


class LedgerFile:
    """A file of a `LedgerDisk`."""

    def __init__(self, file: File, disk: LedgerDisk) -> None:
        self._file = file
        self._disk = disk
        self.name = file.name

    @property
    def size(self) -> int:
        return self._file.size

    def read(self, count: int, offset: int) -> bytes:
        return self._file.read(count, offset)

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        data = b"".join(memoryview(buffer).cast("B") for buffer in buffers)
        # Told before the write: what fails half-way may still be there afterwards.
        if self._disk.ledger is not None:
            self._disk.ledger.wrote(self.name, data, offset)
        self._file.write([data], offset)

    def sync(self) -> None:
        self._file.sync()
        self._synced()

    def sync_all(self) -> None:
        self._file.sync_all()
        self._synced()

    def _synced(self) -> None:
        if self._disk.ledger is not None:
            self._disk.ledger.synced(self.name)

    def map(self) -> memoryview:
        return self._file.map()

    def close(self) -> None:
        self._file.close()
