"""Checks of shards: rows at their places, counters, keys, death marks, stages and cells.

The checked state is the one that an engine would serve: the index with the end of the WAL folded
over it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from pyroaring import BitMap64

from millrace.cli.check.files import INDEX_FILE
from millrace.cli.check.report import CheckReporter, PhaseCounts, PhaseSkipped
from millrace.cli.describe import cell_fields, cell_key, kind_name
from millrace.cli.folder import LOG, Folder, FolderState
from millrace.cli.formatting import ranges, ranges_text, time_text
from millrace.core.cells import Kind, QuarantineCell, QueueCell, StageCell, TopicCell
from millrace.core.delivery.quarantine import STATE
from millrace.core.format.block import FLAG_DELETES, FLAG_KEYS, Block
from millrace.core.format.codec import decode_cell
from millrace.core.model import CATALOG
from millrace.errors import MillraceError
from millrace.store import chunk
from millrace.store.cells import Table
from millrace.store.dead_rows import DEAD, DELETE, ShardState
from millrace.store.folding import flags_of
from millrace.store.index_codec import extent_low, extents_range, number_of, shard_range, stage_of
from millrace.store.overlay import KINDS, parts_of
from millrace.store.read_only_store import ReadOnlyStore, all_cells
from millrace.store.row_location import RELATIVE, UNREADABLE, RowLocation, decode_location
from millrace.store.row_reader import DecodedRows
from millrace.store.sealed import BatchEntry, file_name, read_footer
from millrace.store.unreadable import file_name as aside_name

_EXTENTS = b"\xff" * 8


class PlaceChecker:
    """Checks that locations in the index point to existing, matching rows; caches file footers."""

    def __init__(self, state: FolderState, report: CheckReporter) -> None:
        self._state = state
        self._report = report
        self._segments = {segment.generation: segment for segment in state.replay.survey.used}
        self._lines: dict[int, list[BatchEntry]] = {}

    def check(self, shard: int, first: int | None, place: RowLocation) -> DecodedRows | None:
        """Return the rows at a location, or None if damaged; `first` is None for staged rows."""
        if place.flags & UNREADABLE:
            what = f"{_rows(shard, first, place)} cannot be read; their bytes are kept here"
            self._report.found(aside_name(place.number), None, what)
            return None
        if place.sealed:
            return self._check_sealed(shard, first, place)
        segment = self._segments.get(place.home)
        if segment is None:
            what = f"{_rows(shard, first, place)} should lie in generation {place.home} of the log"
            self._report.found(INDEX_FILE, None, f"{what}, which is gone")
            return None
        view = segment.view()[place.offset : place.offset + place.length]
        try:
            block, used = Block.decode(view)
        except MillraceError as error:
            what = f"{_rows(shard, first, place)} cannot be read here: {error.message}"
            self._report.found(segment.name, place.offset, what)
            return None
        found = (used, block.count, flags_of(block))
        if found != (place.length, place.count, place.flags):
            what = f"{_rows(shard, first, place)} are not what lies here: {block.count} rows"
            self._report.found(segment.name, place.offset, what)
            return None
        return DecodedRows(place, block)

    def _check_sealed(
        self, shard: int, first: int | None, place: RowLocation
    ) -> DecodedRows | None:
        name = file_name(place.home)
        if place.home not in self._lines:
            try:
                self._lines[place.home] = read_footer(self._state.folder.disk, place.home)
            except MillraceError:
                # Missing or damaged: the phase for sealed files has reported it.
                self._lines[place.home] = []
        lines = self._lines[place.home]
        line = lines[place.number] if place.number < len(lines) else None
        if line is None or not _is_same(line, shard, first, place):
            what = f"{_rows(shard, first, place)} should lie here, and do not"
            self._report.found(name, place.offset, what)
            return None
        try:
            return self._state.store.row_reader.decode(place, shard, first or 0)
        except MillraceError as error:
            self._report.found_error(error, name)
            return None


def _is_same(line: BatchEntry, shard: int, first: int | None, place: RowLocation) -> bool:
    """Return True if the file's footer and the index agree about a record batch."""
    if (line.offset, line.length, line.crc) != (place.offset, place.length, place.crc):
        return False
    if line.shard != shard or line.rows != place.count or line.flags != place.flags:
        return False
    if place.flags & RELATIVE:
        return place.span == place.count
    return (line.first, line.last) == (first, (first or 0) + place.span - 1)


def _rows(shard: int, first: int | None, place: RowLocation) -> str:
    if first is None:
        return f"{place.count} staged rows of shard {shard}"
    return f"the rows {first} to {first + place.span - 1} of shard {shard}"


def check_extents(state: FolderState, report: CheckReporter) -> None:
    """Verify that each stored location is in an extent of its file, by which sealing finds rows."""
    known: dict[tuple[bool, int], tuple[list[bytes], list[bytes]]] = {}
    cells = state.store.cells
    for key, value in all_cells(cells, Table.BLOCKS):
        if key.startswith(_EXTENTS):
            return
        stage = stage_of(key)
        if (
            stage[0] if stage is not None else number_of(key[:8])
        ) in state.store.layered.reclaiming:
            continue
        try:
            place = decode_location(value)
        except MillraceError as error:
            report.found(INDEX_FILE, None, f"block {key.hex()}: {error.message}")
            continue
        home = (place.sealed, place.home)
        if home not in known:
            low, high = extents_range(place.home, sealed=place.sealed)
            extents = list(all_cells(cells, Table.BLOCKS, low, high))
            # For each extent, the highest key that it or any before it reaches.
            highest = list(accumulate((last for _, last in extents), max))
            known[home] = [extent_low(name) for name, _ in extents], highest
        lows, highest = known[home]
        at = bisect_right(lows, key) - 1
        if at < 0 or highest[at] < key:
            where = "sealed file" if place.sealed else "generation"
            what = f"block {key.hex()} lies in {where} {place.home}, which does not list it"
            report.found(INDEX_FILE, None, what)


def check_shards(folder: Folder, report: CheckReporter, store: ReadOnlyStore) -> None:
    """Verify every shard; report it if the log cannot be replayed to its end."""
    try:
        state = FolderState(folder, folder.use(), store)
    except MillraceError as error:
        report.found_error(error, LOG)
        report.tell(PhaseSkipped("rows and counters were not checked: the log cannot be folded"))
        return
    try:
        check_extents(state, report)
        places = PlaceChecker(state, report)
        shards = store.layered.all()
        names = _names(store)
        rows = 0
        for at, shard in enumerate(shards):
            report.progress(at, len(shards))
            try:
                name = names.get(shard, f"shard {shard}")
                rows += _Shard(state, report, places, shard, name).check()
            except MillraceError as error:
                report.found(INDEX_FILE, None, f"shard {shard}: {error.message}")
        report.tell(PhaseCounts(rows=rows))
    finally:
        state.replay.close()


class _Shard:
    """The check of one shard."""

    def __init__(
        self, state: FolderState, report: CheckReporter, places: PlaceChecker, shard: int, name: str
    ) -> None:
        self._name = name
        """The queue or topic that the shard belongs to."""
        self._store = state.store
        self._layered = state.store.layered
        self._report = report
        self._places = places
        self._shard = shard
        self._state: ShardState = self._layered.must(shard)
        self._number = self._state.id
        """Number of the shard in the index."""
        meta = self._state.meta
        low, last = max(meta.floor, self._state.gone) + 1, meta.last_seq
        everyone = [interval.pin for interval in meta.intervals]
        dead = self._layered.marks.bits(self._state, everyone, DEAD, low, last)
        self._live = chunk.span(low, last) - dead
        """Live and kept rows, by the death marks."""
        self._present = BitMap64()
        """Rows found at their locations."""
        self._rows = 0
        self._live_keys = 0
        self._unreadable = BitMap64()
        """Rows at damaged locations."""

    def check(self) -> int:
        """Run all checks of the shard; return its number of rows."""
        self._check_cells()
        self._check_counters()
        last = self._state.meta.last_seq
        for first, place in self._layered.row_index.between(self._number, 1, last):
            self._rows += place.count
            end = first + place.span
            gone = self._layered.marks.reclaimable(self._state, first, end - 1)
            if gone.range_cardinality(first, end) == place.span:
                # No reader can reach these rows any more; the next sealing pass reclaims them.
                continue
            decoded = self._places.check(self._shard, first, place)
            if decoded is not None:
                self._check_rows(first, place, decoded)
            else:
                self._present |= chunk.span(first, end - 1)
                self._unreadable |= chunk.span(first, end - 1)
        self._check_quarantine()
        self._check_presence()
        if self._state.meta.keyed:
            self._check_keys()
        return self._rows

    def _found(self, what: str) -> None:
        self._report.found(INDEX_FILE, None, f"shard {self._shard}: {what}")

    def _check_quarantine(self) -> None:
        """Report the queue if it is quarantined, or will be when an engine reads the damage."""
        value = self._layered.cell_of(self._number, KINDS[Kind.QUARANTINE] + STATE)
        cell = decode_cell(Kind.QUARANTINE, value) if value is not None else None
        if isinstance(cell, QuarantineCell):
            reason = cell.reason.removeprefix(f"{self._name}: ")
            what = f"{self._name} is quarantined since {time_text(cell.since_ms)}: {reason}"
            self._report.found(INDEX_FILE, None, what, queue=self._name)
        if self._unreadable:
            what = f"{self._name}: unreadable rows {_text(self._unreadable)} in shard {self._shard}"
            self._report.found(INDEX_FILE, None, what, queue=self._name)

    # --- Cells and counters ----------------------------------------------------------------------

    def _check_cells(self) -> None:
        for key, value in self._store.cells_of(self._shard).items():
            kind, name = key[0], key[1:]
            try:
                # Unpacks the sets of seqs, too.
                cell_fields(kind, name, value)
                if kind == Kind.STAGE:
                    self._check_stage(name.decode(), value)
            except (MillraceError, UnicodeDecodeError) as error:
                self._found(f"cell {kind_name(kind)} {cell_key(kind, name)}: {error}")

    def _check_stage(self, name: str, value: bytes) -> None:
        cell = decode_cell(Kind.STAGE, value)
        assert isinstance(cell, StageCell)
        rows = 0
        for _, place in self._layered.row_index.staged(self._number, name):
            rows += place.count
            self._places.check(self._shard, None, place)
        self._rows += rows
        if rows != cell.rows:
            self._found(f"stage {name!r} has {rows} rows, and its cell says {cell.rows}")

    def _check_counters(self) -> None:
        """I12: each published message is live, or was counted when it died."""
        meta = self._state.meta
        if meta.live != len(self._live):
            counted = f"{meta.published} published less {sum(meta.died)} dead is {meta.live}"
            self._found(f"{len(self._live)} rows are live, but {counted}")

    # --- Rows ------------------------------------------------------------------------------------

    def _check_rows(self, first: int, place: RowLocation, decoded: DecodedRows) -> None:
        if decoded.seqs is None:
            seqs = chunk.span(first, first + place.count - 1)
        else:
            seqs = BitMap64(decoded.seqs.tolist())
        self._present |= seqs
        if seqs and seqs.max() > self._state.meta.last_seq:
            self._found(f"there is a row {seqs.max()} behind the last one")
        if place.flags & FLAG_DELETES:
            self._check_deletes(first, place, decoded)
        if place.flags & FLAG_KEYS and self._state.meta.keyed:
            self._check_row_keys(first, decoded)

    def _check_deletes(self, first: int, place: RowLocation, decoded: DecodedRows) -> None:
        seqs = np.array([seq for _, seq in decoded.pairs(first)], np.uint64)
        deletes = BitMap64(seqs[decoded.block.deletes()].tolist()) & self._live
        last = first + place.span - 1
        missing = deletes - self._layered.marks.bits(self._state, [0], DELETE, first, last)
        if missing:
            self._found(f"deletes that are not marked as such: {_text(missing)}")

    def _check_row_keys(self, first: int, decoded: DecodedRows) -> None:
        """Verify that the key index names the newest live revision of each key."""
        pairs = [
            (key, seq) for key, seq in decoded.pairs(first) if key is not None and seq in self._live
        ]
        self._live_keys += len(pairs)
        named = self._store.point_reads.find(self._shard, [key for key, _ in pairs])
        wrong = [pair for pair, seq in zip(pairs, named, strict=True) if pair[1] != seq]
        if wrong:
            self._found(f"keys that do not name their live rows: {_text(_seqs(wrong))}")

    def _check_presence(self) -> None:
        """Verify that each row that a reader may still reach exists."""
        meta = self._state.meta
        low, last = self._state.gone + 1, meta.last_seq
        gone = self._layered.marks.reclaimable(self._state, low, last)
        missing = chunk.span(low, last) - gone - self._present
        if missing:
            self._found(f"rows that are nowhere: {_text(missing)}")

    def _check_keys(self) -> None:
        """Verify that the key index has as many live keys as there are live rows with keys."""
        newer: dict[bytes, int] = {}
        for part in reversed(parts_of(self._layered.layers, self._number)):
            newer |= part.keys
        low, high = shard_range(self._number)
        count = sum(seq in self._live for seq in newer.values())
        beyond = 0
        for key, value in all_cells(self._store.cells, Table.KEYS, low, high):
            if key[8:] not in newer:
                seq = number_of(value)
                count += seq in self._live
                beyond += not 0 < seq <= self._state.meta.last_seq
        if beyond:
            self._found(f"{beyond} keys name rows that never were")
        if count != self._live_keys and not self._unreadable:
            self._found(f"{count} keys name live rows, but {self._live_keys} live rows have keys")


def _names(store: ReadOnlyStore) -> dict[int, str]:
    """Return the name of the queue or topic of each shard."""
    names: dict[int, str] = {}
    for kind in (Kind.QUEUE, Kind.TOPIC):
        for key, value in store.layered.cells_of(CATALOG, KINDS[kind]).items():
            name = key[1:].decode().replace("\0", "/")
            cell = decode_cell(kind, value)
            if isinstance(cell, QueueCell):
                names.update(dict.fromkeys(cell.shards, f"queue {name}"))
            elif isinstance(cell, TopicCell):
                names[cell.shard] = f"topic {name}"
    return names


def _seqs(pairs: Sequence[tuple[bytes, int]]) -> BitMap64:
    return BitMap64([seq for _, seq in pairs])


def _text(seqs: BitMap64) -> str:
    return ranges_text(ranges(seqs))
