"""From places to rows: over the log's map or a sealed file's, without a copy where possible.

Rule 1: whatever leaves here for long holds what it lies over: the log's segment (L9) or the file.
Rule 2: what is kept in memory lies over the log without a hold; it is let go before the segment is.
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
from millrace.core.block import FLAG_HEADERS, FLAG_KEYS, SCHEMA, Block, DamagedBlock
from millrace.core.column import Array, Column
from millrace.core.model import Row
from millrace.errors import Corrupt, Fatal
from millrace.store.packing import Unpacked
from millrace.store.place import COMPRESSED, RELATIVE, UNREADABLE, Place
from millrace.store.sealed import Moved, SealedFiles
from millrace.store.unreadable import file_name, reading, unreadable
from millrace.wal.segment import Hold
from millrace.wal.write_ahead_log import Log

Seqs = np.ndarray[tuple[int], np.dtype[np.uint64]]
_TIME = SCHEMA.field("time").type
_SHARD = SCHEMA.field("shard")


class Decoded:
    """The rows at one place, ready to be taken out one by one."""

    __slots__ = ("block", "place", "seqs", "size", "times")

    def __init__(
        self, place: Place, block: Block, seqs: Seqs | None = None, times: list[int] | None = None
    ) -> None:
        self.place = place
        self.block = block
        self.size = place.length
        """Bytes that its rows have at most."""
        self.seqs = seqs
        """Each row's seq; None: they follow each other from the place's first one on."""
        self.times = times
        """Each row's time; None: all have the place's."""

    def within(self, first: int, low: int, high: int) -> tuple[int, int]:
        """Which rows, counted from 0, have seqs within [low, high]."""
        if self.seqs is None:
            return max(low - first, 0), min(high - first + 1, self.block.count)
        begin, end = np.searchsorted(self.seqs, np.array([low, high + 1], np.uint64)).tolist()
        return begin, end

    def row(self, first: int, seq: int) -> list[Row]:
        """The row with this seq, if it is here."""
        if self.seqs is None:
            low = seq - first
            if not 0 <= low < self.block.count:
                return []
        else:
            low, high = self.within(first, seq, seq)
            if low >= high:
                return []
        time_ms = self.place.time_ms if self.times is None else self.times[low]
        return [self.block.row(low, seq, time_ms)]

    def rows(self, first: int, wanted: list[int]) -> list[Row]:
        """Those of the wanted rows, whose seqs rise, that are here."""
        low, high = self.within(first, wanted[0], wanted[-1])
        if low >= high:
            return []
        if self.seqs is None and high - low == len(wanted):
            time_ms = self.place.time_ms if self.times is None else self.times[low]
            if self.times is None or self.times[high - 1] == time_ms:
                return self.block.rows(low, high, first, time_ms)
            return self._rows(first, low, high)
        if high - low > 4 * len(wanted):
            # Few rows, far apart: each by itself.
            if self.seqs is None and self.times is None and high == wanted[-1] - first + 1:
                row, time_ms = self.block.row, self.place.time_ms
                return [row(seq - first, seq, time_ms) for seq in wanted]
            return [row for seq in wanted for row in self.row(first, seq)]
        those = set(wanted)
        return [row for row in self._rows(first, low, high) if row.seq in those]

    def _rows(self, first: int, low: int, high: int) -> list[Row]:
        seqs: Iterable[int] = range(first + low, first + high)
        if self.seqs is not None:
            seqs = self.seqs[low:high].tolist()
        times = self.times[low:high] if self.times else [self.place.time_ms] * (high - low)
        return [
            Row(seq, time_ms, row.body, row.key, row.headers)
            for seq, time_ms, row in zip(seqs, times, self.block.rows(low, high, 0, 0), strict=True)
        ]

    def pairs(self, first: int) -> list[tuple[bytes | None, int]]:
        """Key and seq of every row."""
        seqs = range(first, first + self.block.count) if self.seqs is None else self.seqs.tolist()
        return list(zip(self.block.key_list(), seqs, strict=True))


_Kept = OrderedDict[tuple[bool, int, int], Decoded]
"""Sealed or not, home and offset of a place → its rows; who was asked for last comes last."""


def _keep(kept: _Kept, key: tuple[bool, int, int], found: Decoded, most: int) -> None:
    kept[key] = found
    if len(kept) > most:
        kept.popitem(last=False)


class Reading:
    """Reads what places name; arrays on any thread, single rows on the engine's."""

    def __init__(self, files: SealedFiles) -> None:
        self.files = files
        self._log: Log | None = None
        self._opened = 0
        self._decoded: _Kept = OrderedDict()
        """Over maps."""
        self._fresh: _Kept = OrderedDict()
        """With bytes of their own."""
        self._unpacked = Unpacked()
        self._warm = Warm()
        self._shards: dict[int, Array] = {}

    def attach(self, log: Log) -> None:
        """From now on rows may lie in the log."""
        self._log = log
        # What this process has written is taken to be in memory still.
        self._opened = log.mark().generation

    @property
    def log(self) -> Log:
        if self._log is None:
            raise Fatal("the store was asked for rows before it was given its log")
        return self._log

    # --- Single rows -----------------------------------------------------------------------------

    def decoded(self, place: Place, shard: int, first: int) -> Decoded:
        """The rows at a place, whose first seq is given (0: they are staged), kept for next time.

        Raises:
            Unreadable: they are damaged.
        """
        key = (place.sealed, place.home, place.offset)
        kept = self._decoded if key in self._decoded else self._fresh
        found = kept.get(key)
        if found is not None and (found.place is place or found.place == place):
            kept.move_to_end(key)
            return found
        _check_readable(shard, first, place)
        with reading(shard, first, place):
            if place.flags & COMPRESSED:
                return self._unpacked_at(key, place, shard)
            if place.sealed:
                found = decode_sealed(place, self.files.get(place.home).read(place, shard))
            else:
                view = self.log.buffer(place.position())
                if view is None:
                    raise Moved
                found = Decoded(place, Block.decode(view)[0])
        _keep(self._decoded, key, found, limits.DECODED_BLOCKS_MAX)
        return found

    def _unpacked_at(self, key: tuple[bool, int, int], place: Place, shard: int) -> Decoded:
        """The rows of a compressed batch, of which fewer are kept."""
        known = self._unpacked.get(key)
        if isinstance(known, Decoded) and known.place == place:
            return known
        if place.sealed:
            batch = self.files.get(place.home).read(place, shard)
            found = decode_sealed(place, batch)
            found.size = batch.nbytes
        else:
            view = self.log.buffer(place.position())
            if view is None:
                raise Moved
            found = Decoded(place, Block.decode(view)[0])
            found.size = found.block.size()
        self._unpacked.put(key, found, found.size)
        return found

    def remember(self, place: Place, block: Block) -> None:
        """These rows were written just now: who waited for a few of them reads them next."""
        if place.flags & COMPRESSED or place.length > limits.FRESH_BLOCK_BYTES_MAX:
            # Compressed ones are large in memory, however short their place is.
            return
        if isinstance(block, DamagedBlock):
            return
        # What lies in a caller's own buffers may change, and bytes do not.
        if type(block.bodies.data) is bytes:
            key = (False, place.home, place.offset)
            found = Decoded(place, block)
            found.size = block.size()
            _keep(self._fresh, key, found, limits.FRESH_BLOCKS_MAX)

    def decode(self, place: Place, shard: int, first: int) -> Decoded:
        """As `decoded`, for once; on any thread."""
        _check_readable(shard, first, place)
        with reading(shard, first, place):
            if place.sealed:
                return decode_sealed(place, self.files.get(place.home).read(place, shard))
            return Decoded(place, self._held_block(place))

    def is_new(self, place: Place) -> bool:
        """Whether its bytes were written to the log by this process."""
        return not place.sealed and place.home >= self._opened

    def is_hot(self, place: Place) -> bool:
        """Whether its bytes are in memory, as far as can be told."""
        key = (place.sealed, place.home, place.offset)
        known = key in self._decoded or key in self._warm or key in self._unpacked
        return self.is_new(place) or known or bool(place.flags & UNREADABLE)

    def toucher(self, shard: int, found: list[tuple[int, Place]]) -> Callable[[], None]:
        """A call that reads the bytes from the disk, on any thread; what it has read is hot.

        `found`: places with the first seq of each, 0 where the rows are staged.
        """
        jobs: list[tuple[int, Place, Callable[[], object]]] = []
        for first, place in found:
            if place.flags & UNREADABLE:
                # Whoever asks for these rows is told so; those around them can be read.
                continue
            if place.sealed:
                file = self.files.get(place.home)
                jobs.append((first, place, partial(file.verify, place, shard)))
            else:
                hold = self.log.hold(place.home)
                if hold is None:
                    raise Moved
                jobs.append((first, place, partial(_touch, hold, place)))

        def touch() -> None:
            for first, place, job in jobs:
                # Others may have waited for the same.
                if not self.is_hot(place):
                    with reading(shard, first, place):
                        job()
                    self._warm.add(place)
            jobs.clear()

        return touch

    def touch(self, shard: int, first: int, place: Place) -> None:
        """Read the bytes from the disk, unless they are hot; on any thread."""
        self.toucher(shard, [(first, place)])()

    def forget(self, homes: set[tuple[bool, int]]) -> None:
        """Let go of everything that lies in these generations and files."""
        for kept in (self._decoded, self._fresh):
            for key in [key for key in kept if key[:2] in homes]:
                del kept[key]
        self._unpacked.forget(homes)
        self._warm.forget(homes)

    # --- Arrays ----------------------------------------------------------------------------------

    def batch(self, shard: int, first: int, place: Place) -> pa.RecordBatch:
        """All rows at a place, in the common schema, valid as long as the batch is kept."""
        if not place.sealed:
            return self.held_block(shard, first, place).arrow(shard, first, place.time_ms)
        return self._with_shard(shard, self.sealed_batch(shard, first, place))

    def sealed_batch(self, shard: int, first: int, place: Place) -> pa.RecordBatch:
        """All rows at a place of a sealed file, without the shard's column."""
        _check_readable(shard, first, place)
        with reading(shard, first, place):
            batch = self.files.get(place.home).read(place, shard)
        if place.flags & RELATIVE:
            count = batch.num_rows
            seqs = pa.array(np.arange(first, first + count, dtype=np.uint64))
            times = pa.array(np.full(count, place.time_ms, np.int64)).view(_TIME)
            columns = [seqs, batch.column(1), batch.column(2), times, batch.column(4)]
            batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        return batch

    def message(self, shard: int, first: int, place: Place) -> pa.Buffer | None:
        """The IPC message of a sealed batch; None if its rows are not in it as they are read."""
        if place.flags & (RELATIVE | COMPRESSED | UNREADABLE):
            return None
        with reading(shard, first, place):
            return self.files.get(place.home).message(place, shard)

    def held_block(self, shard: int, first: int, place: Place) -> Block:
        """The block at a place in the log; it holds its segment as long as any part of it lives."""
        with reading(shard, first, place):
            return self._held_block(place)

    def _held_block(self, place: Place) -> Block:
        loan = self.log.lend(place.position())
        if loan is None:
            raise Moved
        if loan.hold is None:
            return Block.decode(loan.view)[0]
        whole = pa.py_buffer(loan.view)
        # Everything below is a slice of this buffer, and keeps the hold through it.
        guarded = pa.foreign_buffer(whole.address, whole.size, base=(whole, loan.hold))
        return Block.decode(memoryview(guarded))[0]

    def _with_shard(self, shard: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        known: Array | None = self._shards.get(shard)
        if known is None or len(known) < batch.num_rows:
            if len(self._shards) >= limits.SHARD_COLUMNS_MAX:
                self._shards.clear()
            rows = max(batch.num_rows, limits.SEALED_BATCH_ROWS)
            known = pa.array(np.full(rows, shard, np.uint64), pa.uint64())
            self._shards[shard] = known
        return batch.add_column(0, _SHARD, known.slice(0, batch.num_rows))


class Warm:
    """Which places were read lately, so that their bytes are taken to be in the page cache."""

    def __init__(self) -> None:
        self._lengths: OrderedDict[tuple[bool, int, int], int] = OrderedDict()
        self._offsets: dict[tuple[bool, int], set[int]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def __contains__(self, key: tuple[bool, int, int]) -> bool:
        return key in self._lengths

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, place: Place) -> None:
        """It was read; the places that were read the longest time ago may count no more."""
        key = (place.sealed, place.home, place.offset)
        with self._lock:
            self._bytes += place.length - self._lengths.pop(key, 0)
            self._lengths[key] = place.length
            self._offsets.setdefault(key[:2], set()).add(place.offset)
            while len(self._lengths) > 1 and (
                self._bytes > limits.WARM_BYTES_MAX or len(self._lengths) > limits.WARM_PLACES_MAX
            ):
                self._drop(next(iter(self._lengths)))

    def forget(self, homes: set[tuple[bool, int]]) -> None:
        """Nothing lies in these generations and files any more."""
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


def _check_readable(shard: int, first: int, place: Place) -> None:
    if place.flags & UNREADABLE:
        error = Corrupt(f"their bytes were damaged and are kept in {file_name(place.number)}")
        raise unreadable(shard, first, place, error)


def _touch(hold: Hold, place: Place) -> None:
    crc32c(hold.buffer(place.position()))


def decode_sealed(place: Place, batch: pa.RecordBatch) -> Decoded:
    """A sealed record batch as a block over the same bytes."""
    count = batch.num_rows
    bodies = _column(batch.column("value"), count)
    keys = _column(batch.column("key"), count) if place.flags & FLAG_KEYS else None
    block = Block(count, bodies, keys)
    if place.flags & FLAG_HEADERS:
        headers = batch.column("headers")
        _, lists, _, _, names, name_data, _, values, value_data = headers.buffers()
        pairs = len(headers.values)  # type: ignore[attr-defined]
        block.header_lists = _bytes(lists)[: 4 * (count + 1)]
        block.header_names = Column(_bytes(names)[: 4 * (pairs + 1)], _bytes(name_data))
        block.header_values = Column(_bytes(values)[: 4 * (pairs + 1)], _bytes(value_data))
    if place.flags & RELATIVE:
        return Decoded(place, block)
    seqs = None
    if place.span != count:
        seqs = batch.column("seq").to_numpy()
    times = None
    if place.time_ms != place.last_ms:
        times = batch.column("time").view(pa.int64()).to_numpy().tolist()
    return Decoded(place, block, seqs, times)


def _column(array: Array, count: int) -> Column:
    validity, offsets, data = array.buffers()
    mask: memoryview | bytes = b""
    if validity is not None and array.null_count:
        mask = memoryview(validity)[: (count + 7) // 8]
    return Column(_bytes(offsets)[: 4 * (count + 1)], _bytes(data), mask)


def _bytes(data: pa.Buffer | None) -> memoryview | bytes:
    return b"" if data is None else memoryview(data)


def without(batch: pa.RecordBatch, place: Place, seqs: BitMap64) -> pa.RecordBatch:
    """The rows of a batch, or of a slice of one, that lies at `place`, but for `seqs`."""
    unwanted = np.frombuffer(seqs.to_array(), np.uint64)
    keep = np.ones(batch.num_rows, np.bool_)
    own = batch.column("seq").to_numpy()
    if place.span == place.count:
        keep[unwanted - own[0]] = False
    else:
        at = np.searchsorted(own, unwanted)
        at, unwanted = at[at < len(own)], unwanted[at < len(own)]
        keep[at[own[at] == unwanted]] = False
    return batch.filter(pa.array(keep))
