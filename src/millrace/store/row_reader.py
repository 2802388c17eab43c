"""Reads rows at their locations, from the maps of log segments and sealed files, without copies.

Rule 1: long-lived results hold the memory that they view: the log's segment (L9) or the file.
Rule 2: cached blocks view the log without a hold; they are evicted before the segment is released.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from pyroaring import BitMap64

from millrace import limits
from millrace.core.format.block import (
    FLAG_HEADERS,
    FLAG_KEYS,
    SCHEMA,
    Block,
    DamagedBlock,
)
from millrace.core.format.column import Array, Column
from millrace.core.model import Row
from millrace.errors import Corrupt, Fatal
from millrace.store.compression import UnpackedCache
from millrace.store.row_location import (
    COMPRESSED,
    RELATIVE,
    UNREADABLE,
    RowLocation,
)
from millrace.store.sealed import Moved, SealedFiles
from millrace.store.unreadable import file_name, reading_rows, unreadable
from millrace.wal.segment import Hold
from millrace.wal.write_ahead_log import WriteAheadLog

Seqs = np.ndarray[tuple[int], np.dtype[np.uint64]]
_TIME = SCHEMA.field("time").type
_SHARD = SCHEMA.field("shard")


class DecodedRows:
    """The decoded block at one location, from which single rows are read."""

    __slots__ = ("block", "location", "seqs", "size", "times")

    def __init__(
        self,
        location: RowLocation,
        block: Block,
        seqs: Seqs | None = None,
        times: list[int] | None = None,
    ) -> None:
        self.location = location
        self.block = block
        self.size = location.length
        """Upper bound of the bytes of its rows."""
        self.seqs = seqs
        """Seq of each row; None: they are consecutive from the first seq on."""
        self.times = times
        """Time of each row; None: all have the time of the location."""

    def within(self, first: int, low: int, high: int) -> tuple[int, int]:
        """Return the range of row numbers, from 0, whose seqs are within [low, high]."""
        if self.seqs is None:
            return max(low - first, 0), min(high - first + 1, self.block.count)
        begin, end = np.searchsorted(self.seqs, np.array([low, high + 1], np.uint64)).tolist()
        return begin, end

    def row(self, first: int, seq: int) -> list[Row]:
        """Return the row with this seq; an empty list if it is not here."""
        if self.seqs is None:
            low = seq - first
            if not 0 <= low < self.block.count:
                return []
        else:
            low, high = self.within(first, seq, seq)
            if low >= high:
                return []
        time_ms = self.location.time_ms if self.times is None else self.times[low]
        return [self.block.row(low, seq, time_ms)]

    def rows(self, first: int, wanted: list[int]) -> list[Row]:
        """Return those of the wanted rows, by ascending seqs, that are here."""
        low, high = self.within(first, wanted[0], wanted[-1])
        if low >= high:
            return []
        if self.seqs is None and high - low == len(wanted):
            time_ms = self.location.time_ms if self.times is None else self.times[low]
            if self.times is None or self.times[high - 1] == time_ms:
                return self.block.rows(low, high, first, time_ms)
            return self._rows(first, low, high)
        if high - low > 4 * len(wanted):
            # Few rows, far from each other: read them one by one.
            if self.seqs is None and self.times is None and high == wanted[-1] - first + 1:
                row, time_ms = self.block.row, self.location.time_ms
                return [row(seq - first, seq, time_ms) for seq in wanted]
            return [row for seq in wanted for row in self.row(first, seq)]
        those = set(wanted)
        return [row for row in self._rows(first, low, high) if row.seq in those]

    def _rows(self, first: int, low: int, high: int) -> list[Row]:
        seqs: Iterable[int] = range(first + low, first + high)
        if self.seqs is not None:
            seqs = self.seqs[low:high].tolist()
        times = self.times[low:high] if self.times else [self.location.time_ms] * (high - low)
        return [
            Row(seq, time_ms, row.body, row.key, row.headers)
            for seq, time_ms, row in zip(seqs, times, self.block.rows(low, high, 0, 0), strict=True)
        ]

    def pairs(self, first: int) -> list[tuple[bytes | None, int]]:
        """Return key and seq of every row."""
        seqs = range(first, first + self.block.count) if self.seqs is None else self.seqs.tolist()
        return list(zip(self.block.key_list(), seqs, strict=True))


_Kept = OrderedDict[tuple[bool, int, int], DecodedRows]
"""An LRU cache: (sealed or not, home, offset) of a location → its rows."""


def _keep(kept: _Kept, key: tuple[bool, int, int], rows: DecodedRows, limit: int) -> None:
    kept[key] = rows
    if len(kept) > limit:
        kept.popitem(last=False)


class RowReader:
    """Reads the rows at locations; arrays on any thread, single rows on the engine's."""

    def __init__(self, files: SealedFiles) -> None:
        self.files = files
        self._log: WriteAheadLog | None = None
        self._opened = 0
        self._decoded: _Kept = OrderedDict()
        """Cached blocks over maps."""
        self._fresh: _Kept = OrderedDict()
        """Cached blocks with their own memory, just written."""
        self._unpacked = UnpackedCache()
        self._warm = WarmLocations()
        self._shards: dict[int, Array] = {}

    def attach(self, log: WriteAheadLog) -> None:
        """Read rows from this log as well."""
        self._log = log
        # Rows that this process has written are assumed to be in the page cache.
        self._opened = log.mark().generation

    @property
    def log(self) -> WriteAheadLog:
        if self._log is None:
            raise Fatal("the store was asked for rows before it was given its log")
        return self._log

    # --- Single rows -----------------------------------------------------------------------------

    def decoded(self, location: RowLocation, shard: int, first: int) -> DecodedRows:
        """Return the rows at a location through the cache; `first` is 0 if they are staged.

        Raises:
            Unreadable: they are damaged.
        """
        key = (location.sealed, location.home, location.offset)
        kept = self._decoded if key in self._decoded else self._fresh
        rows = kept.get(key)
        if rows is not None and (rows.location is location or rows.location == location):
            kept.move_to_end(key)
            return rows
        _check_readable(shard, first, location)
        with reading_rows(shard, first, location):
            if location.flags & COMPRESSED:
                return self._unpacked_at(key, location, shard)
            if location.sealed:
                rows = decode_sealed(location, self.files.get(location.home).read(location, shard))
            else:
                view = self.log.buffer(location.position())
                if view is None:
                    raise Moved
                rows = DecodedRows(location, Block.decode(view)[0])
        _keep(self._decoded, key, rows, limits.DECODED_BLOCKS_MAX)
        return rows

    def _unpacked_at(
        self, key: tuple[bool, int, int], location: RowLocation, shard: int
    ) -> DecodedRows:
        """Return the rows of a compressed batch, through a smaller cache."""
        cached = self._unpacked.get(key)
        if isinstance(cached, DecodedRows) and cached.location == location:
            return cached
        if location.sealed:
            batch = self.files.get(location.home).read(location, shard)
            rows = decode_sealed(location, batch)
            rows.size = batch.nbytes
        else:
            view = self.log.buffer(location.position())
            if view is None:
                raise Moved
            rows = DecodedRows(location, Block.decode(view)[0])
            rows.size = rows.block.size()
        self._unpacked.put(key, rows, rows.size)
        return rows

    def remember(self, location: RowLocation, block: Block) -> None:
        """Cache rows that were just written: a waiting worker reads them next."""
        if location.flags & COMPRESSED or location.length > limits.FRESH_BLOCK_BYTES_MAX:
            # A compressed block is large in memory, however short it is in the log.
            return
        if isinstance(block, DamagedBlock):
            return
        # The buffers of a caller may change; bytes do not.
        if type(block.bodies.data) is bytes:
            key = (False, location.home, location.offset)
            rows = DecodedRows(location, block)
            rows.size = block.size()
            _keep(self._fresh, key, rows, limits.FRESH_BLOCKS_MAX)

    def decode(self, location: RowLocation, shard: int, first: int) -> DecodedRows:
        """Return the rows at a location without the cache; on any thread."""
        _check_readable(shard, first, location)
        with reading_rows(shard, first, location):
            if location.sealed:
                return decode_sealed(location, self.files.get(location.home).read(location, shard))
            return DecodedRows(location, self._held_block(location))

    def is_new(self, location: RowLocation) -> bool:
        """Return True if this process has written its bytes to the log."""
        return not location.sealed and location.home >= self._opened

    def is_hot(self, location: RowLocation) -> bool:
        """Return True if its bytes are in memory, as far as is known."""
        key = (location.sealed, location.home, location.offset)
        is_cached = key in self._decoded or key in self._warm or key in self._unpacked
        return self.is_new(location) or is_cached or bool(location.flags & UNREADABLE)

    def toucher(self, shard: int, locations: list[tuple[int, RowLocation]]) -> Callable[[], None]:
        """Return a function that reads the bytes from the disk, on any thread; then they are hot.

        `found`: locations with the first seq of each, 0 if the rows are staged.
        """
        jobs: list[tuple[int, RowLocation, Callable[[], object]]] = []
        for first, location in locations:
            if location.flags & UNREADABLE:
                # A read of these rows raises the error; the rows around them can be read.
                continue
            if location.sealed:
                file = self.files.get(location.home)
                jobs.append((first, location, partial(file.verify, location, shard)))
            else:
                hold = self.log.hold(location.home)
                if hold is None:
                    raise Moved
                jobs.append((first, location, partial(_touch, hold, location)))

        def touch() -> None:
            for first, location, job in jobs:
                # Another call may have read them in between.
                if not self.is_hot(location):
                    with reading_rows(shard, first, location):
                        job()
                    self._warm.add(location)
            jobs.clear()

        return touch

    def touch(self, shard: int, first: int, location: RowLocation) -> None:
        """Read the bytes from the disk, unless they are hot; on any thread."""
        self.toucher(shard, [(first, location)])()

    def forget(self, homes: set[tuple[bool, int]]) -> None:
        """Evict everything from these generations and files."""
        for kept in (self._decoded, self._fresh):
            for key in [key for key in kept if key[:2] in homes]:
                del kept[key]
        self._unpacked.forget(homes)
        self._warm.forget(homes)

    # --- Arrays ----------------------------------------------------------------------------------

    def batch(self, shard: int, first: int, location: RowLocation) -> pa.RecordBatch:
        """Return all rows at a location, in the common schema, valid while the batch is kept."""
        if not location.sealed:
            return self.held_block(shard, first, location).arrow(shard, first, location.time_ms)
        return self._with_shard(shard, self.sealed_batch(shard, first, location))

    def sealed_batch(self, shard: int, first: int, location: RowLocation) -> pa.RecordBatch:
        """Return all rows at a location in a sealed file, without the column of the shard."""
        _check_readable(shard, first, location)
        with reading_rows(shard, first, location):
            batch = self.files.get(location.home).read(location, shard)
        if location.flags & RELATIVE:
            count = batch.num_rows
            seqs = pa.array(np.arange(first, first + count, dtype=np.uint64))
            times = pa.array(np.full(count, location.time_ms, np.int64)).view(_TIME)
            columns = [seqs, batch.column(1), batch.column(2), times, batch.column(4)]
            batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        return batch

    def message(self, shard: int, first: int, location: RowLocation) -> pa.Buffer | None:
        """Return the IPC message of a sealed batch; None if it differs from the rows to read."""
        if location.flags & (RELATIVE | COMPRESSED | UNREADABLE):
            return None
        with reading_rows(shard, first, location):
            return self.files.get(location.home).message(location, shard)

    def held_block(self, shard: int, first: int, location: RowLocation) -> Block:
        """Return the block at a location in the log; it holds its segment while any part lives."""
        with reading_rows(shard, first, location):
            return self._held_block(location)

    def _held_block(self, location: RowLocation) -> Block:
        loan = self.log.lend(location.position())
        if loan is None:
            raise Moved
        if loan.hold is None:
            return Block.decode(loan.view)[0]
        whole = pa.py_buffer(loan.view)
        # All parts of the block are slices of this buffer, which keeps the hold alive.
        guarded = pa.foreign_buffer(whole.address, whole.size, base=(whole, loan.hold))
        return Block.decode(memoryview(guarded))[0]

    def _with_shard(self, shard: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        column: Array | None = self._shards.get(shard)
        if column is None or len(column) < batch.num_rows:
            if len(self._shards) >= limits.SHARD_COLUMNS_MAX:
                self._shards.clear()
            rows = max(batch.num_rows, limits.SEALED_BATCH_ROWS)
            column = pa.array(np.full(rows, shard, np.uint64), pa.uint64())
            self._shards[shard] = column
        return batch.add_column(0, _SHARD, column.slice(0, batch.num_rows))


class WarmLocations:
    """An LRU set of recently read locations, whose bytes are assumed to be in the page cache."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[tuple[bool, int, int], int] = OrderedDict()
        self._offsets: dict[tuple[bool, int], set[int]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def __contains__(self, key: tuple[bool, int, int]) -> bool:
        return key in self._lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, location: RowLocation) -> None:
        """Add a location that was read, and evict the least recently read ones."""
        key = (location.sealed, location.home, location.offset)
        with self._lock:
            self._bytes += location.length - self._lengths.pop(key, 0)
            self._lengths[key] = location.length
            self._offsets.setdefault(key[:2], set()).add(location.offset)
            while len(self._lengths) > 1 and (
                self._bytes > limits.WARM_BYTES_MAX or len(self._lengths) > limits.WARM_PLACES_MAX
            ):
                self._drop(next(iter(self._lengths)))

    def forget(self, homes: set[tuple[bool, int]]) -> None:
        """Evict the locations in these generations and files."""
        with self._lock:
            for home in homes & self._offsets.keys():
                for offset in list(self._offsets[home]):
                    self._drop((*home, offset))

    def _drop(self, key: tuple[bool, int, int]) -> None:
        self._bytes -= self._lengths.pop(key)
        offsets = self._offsets[key[:2]]
        offsets.discard(key[2])
        if not offsets:
            del self._offsets[key[:2]]


def _check_readable(shard: int, first: int, location: RowLocation) -> None:
    if location.flags & UNREADABLE:
        error = Corrupt(f"their bytes were damaged and are kept in {file_name(location.number)}")
        raise unreadable(shard, first, location, error)


def _touch(hold: Hold, location: RowLocation) -> None:
    crc32c(hold.buffer(location.position()))


def decode_sealed(location: RowLocation, batch: pa.RecordBatch) -> DecodedRows:
    """Return a sealed record batch as a block over the same bytes."""
    count = batch.num_rows
    bodies = _column(batch.column("value"), count)
    keys = _column(batch.column("key"), count) if location.flags & FLAG_KEYS else None
    block = Block(count, bodies, keys)
    if location.flags & FLAG_HEADERS:
        headers = batch.column("headers")
        _, lists, _, _, names, name_data, _, values, value_data = headers.buffers()
        pairs = len(headers.values)  # type: ignore[attr-defined]
        block.header_lists = _bytes(lists)[: 4 * (count + 1)]
        block.header_names = Column(_bytes(names)[: 4 * (pairs + 1)], _bytes(name_data))
        block.header_values = Column(_bytes(values)[: 4 * (pairs + 1)], _bytes(value_data))
    if location.flags & RELATIVE:
        return DecodedRows(location, block)
    seqs = None
    if location.span != count:
        seqs = batch.column("seq").to_numpy()
    times = None
    if location.time_ms != location.last_ms:
        times = batch.column("time").view(pa.int64()).to_numpy().tolist()
    return DecodedRows(location, block, seqs, times)


def _column(array: Array, count: int) -> Column:
    validity, offsets, data = array.buffers()
    mask: memoryview | bytes = b""
    if validity is not None and array.null_count:
        mask = memoryview(validity)[: (count + 7) // 8]
    return Column(_bytes(offsets)[: 4 * (count + 1)], _bytes(data), mask)


def _bytes(data: pa.Buffer | None) -> memoryview | bytes:
    return b"" if data is None else memoryview(data)


def without(batch: pa.RecordBatch, location: RowLocation, seqs: BitMap64) -> pa.RecordBatch:
    """Return the rows of a batch at `location`, or of a slice of it, without `seqs`."""
    unwanted = np.frombuffer(seqs.to_array(), np.uint64)
    keep = np.ones(batch.num_rows, np.bool_)
    own = batch.column("seq").to_numpy()
    if location.span == location.count:
        keep[unwanted - own[0]] = False
    else:
        at = np.searchsorted(own, unwanted)
        at, unwanted = at[at < len(own)], unwanted[at < len(own)]
        keep[at[own[at] == unwanted]] = False
    return batch.filter(pa.array(keep))
