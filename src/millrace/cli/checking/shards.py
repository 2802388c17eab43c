"""The shards: rows where the index says, counters that add up, keys, marks, stages and cells.

What is judged is the state that an engine would serve: the index with the log's end folded over it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pyroaring import BitMap64

from millrace.cli.checking.places import INDEX_FILE, Places, check_extents
from millrace.cli.checking.report import Counted, Report, Skipped
from millrace.cli.describe import cell_fields, cell_key, kind_name
from millrace.cli.folder import LOG, Folder, State
from millrace.cli.show import ranges, ranges_text, time_text
from millrace.core.block import FLAG_DELETES, FLAG_KEYS
from millrace.core.codec import decode_cell
from millrace.core.model import CATALOG, Kind, QueueCell
from millrace.core.quarantine import STATE
from millrace.core.quarantine_commands import QuarantineCell
from millrace.core.stage_cells import StageCell
from millrace.core.topic_cells import TopicCell
from millrace.errors import MillraceError
from millrace.store import chunk
from millrace.store.cells import Table
from millrace.store.dead_rows import DEAD, DELETE, ShardState
from millrace.store.inspect import Inspection, all_cells
from millrace.store.overlay import KINDS, parts_of
from millrace.store.place import Place
from millrace.store.reading import Decoded
from millrace.store.tables import number_of, shard_range


def check_shards(folder: Folder, report: Report, store: Inspection) -> None:
    """Verify every shard; says so if the log cannot be read to its end."""
    try:
        state = State(folder, folder.use(), store)
    except MillraceError as error:
        report.found_error(error, LOG)
        report.tell(Skipped("rows and counters were not checked: the log cannot be folded"))
        return
    try:
        check_extents(state, report)
        places = Places(state, report)
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
        report.tell(Counted(rows=rows))
    finally:
        state.replay.close()


class _Shard:
    """One shard, while it is checked."""

    def __init__(self, state: State, report: Report, places: Places, shard: int, name: str) -> None:
        self._name = name
        """The queue or topic that the shard belongs to."""
        self._store = state.store
        self._layered = state.store.layered
        self._report = report
        self._places = places
        self._shard = shard
        self._state: ShardState = self._layered.must(shard)
        self._number = self._state.id
        """Under which the index holds it."""
        meta = self._state.meta
        low, last = max(meta.floor, self._state.gone) + 1, meta.last_seq
        everyone = [interval.pin for interval in meta.intervals]
        dead = self._layered.marks.bits(self._state, everyone, DEAD, low, last)
        self._live = chunk.span(low, last) - dead
        """Live and kept rows, by the marks."""
        self._present = BitMap64()
        """Rows that were found."""
        self._rows = 0
        self._live_keys = 0
        self._unreadable = BitMap64()
        """Rows whose places are damaged."""

    def check(self) -> int:
        """Look at everything; returns how many rows there are."""
        self._check_cells()
        self._check_counters()
        last = self._state.meta.last_seq
        for first, place in self._layered.blocks.between(self._number, 1, last):
            self._rows += place.count
            end = first + place.span
            gone = self._layered.marks.reclaimable(self._state, first, end - 1)
            if gone.range_cardinality(first, end) == place.span:
                # Nobody can ask for these rows any more; they go with the next pass of sealing.
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
        """Name the queue, whether an engine has quarantined it or will when it meets the damage."""
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
                # This unpacks the sets of seqs, too.
                cell_fields(kind, name, value)
                if kind == Kind.STAGE:
                    self._check_stage(name.decode(), value)
            except (MillraceError, UnicodeDecodeError) as error:
                self._found(f"cell {kind_name(kind)} {cell_key(kind, name)}: {error}")

    def _check_stage(self, name: str, value: bytes) -> None:
        cell = decode_cell(Kind.STAGE, value)
        assert isinstance(cell, StageCell)
        rows = 0
        for _, place in self._layered.blocks.staged(self._number, name):
            rows += place.count
            self._places.check(self._shard, None, place)
        self._rows += rows
        if rows != cell.rows:
            self._found(f"stage {name!r} has {rows} rows, and its cell says {cell.rows}")

    def _check_counters(self) -> None:
        """I12: what was published is live, or has died in a way that was counted."""
        meta = self._state.meta
        if meta.live != len(self._live):
            counted = f"{meta.published} published less {sum(meta.died)} dead is {meta.live}"
            self._found(f"{len(self._live)} rows are live, but {counted}")

    # --- Rows ------------------------------------------------------------------------------------

    def _check_rows(self, first: int, place: Place, decoded: Decoded) -> None:
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

    def _check_deletes(self, first: int, place: Place, decoded: Decoded) -> None:
        seqs = np.array([seq for _, seq in decoded.pairs(first)], np.uint64)
        deletes = BitMap64(seqs[decoded.block.deletes()].tolist()) & self._live
        last = first + place.span - 1
        missing = deletes - self._layered.marks.bits(self._state, [0], DELETE, first, last)
        if missing:
            self._found(f"deletes that are not marked as such: {_text(missing)}")

    def _check_row_keys(self, first: int, decoded: Decoded) -> None:
        """The newest live revision of a key is the one that its entry names."""
        pairs = [
            (key, seq) for key, seq in decoded.pairs(first) if key is not None and seq in self._live
        ]
        self._live_keys += len(pairs)
        named = self._store.asking.find(self._shard, [key for key, _ in pairs])
        wrong = [pair for pair, seq in zip(pairs, named, strict=True) if pair[1] != seq]
        if wrong:
            self._found(f"keys that do not name their live rows: {_text(_seqs(wrong))}")

    def _check_presence(self) -> None:
        """Every row that somebody may still ask for is somewhere."""
        meta = self._state.meta
        low, last = self._state.gone + 1, meta.last_seq
        gone = self._layered.marks.reclaimable(self._state, low, last)
        missing = chunk.span(low, last) - gone - self._present
        if missing:
            self._found(f"rows that are nowhere: {_text(missing)}")

    def _check_keys(self) -> None:
        """There are no more keys with live rows than live rows with keys."""
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


def _names(store: Inspection) -> dict[int, str]:
    """Shard → the queue or topic that it belongs to."""
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
