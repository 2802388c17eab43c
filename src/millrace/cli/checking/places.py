"""Whether places in the index point to bytes that exist and hold what they say."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

from millrace.cli.checking.report import Report
from millrace.cli.folder import State
from millrace.core.block import Block
from millrace.errors import MillraceError
from millrace.store.cells import Table
from millrace.store.folding import flags_of
from millrace.store.inspect import all_cells
from millrace.store.place import RELATIVE, UNREADABLE, Place, decode_place
from millrace.store.reading import Decoded
from millrace.store.sealed import Line, file_name, read_lines
from millrace.store.tables import extent_low, extents_range, number_of, stage_of
from millrace.store.unreadable import file_name as aside_name

INDEX_FILE = "index/data.mdb"

_EXTENTS = b"\xff" * 8


class Places:
    """Judges places; what files say of themselves is read once."""

    def __init__(self, state: State, report: Report) -> None:
        self._state = state
        self._report = report
        self._segments = {segment.generation: segment for segment in state.replay.survey.used}
        self._lines: dict[int, list[Line]] = {}

    def check(self, shard: int, first: int | None, place: Place) -> Decoded | None:
        """The rows at a place, if they are there; `first` is None for those of a stage."""
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
        return Decoded(place, block)

    def _check_sealed(self, shard: int, first: int | None, place: Place) -> Decoded | None:
        name = file_name(place.home)
        if place.home not in self._lines:
            try:
                self._lines[place.home] = read_lines(self._state.folder.disk, place.home)
            except MillraceError:
                # Missing or damaged: that was found when the files were looked at.
                self._lines[place.home] = []
        lines = self._lines[place.home]
        line = lines[place.number] if place.number < len(lines) else None
        if line is None or not _is_same(line, shard, first, place):
            what = f"{_rows(shard, first, place)} should lie here, and do not"
            self._report.found(name, place.offset, what)
            return None
        try:
            return self._state.store.reading.decode(place, shard, first or 0)
        except MillraceError as error:
            self._report.found_error(error, name)
            return None


def _is_same(line: Line, shard: int, first: int | None, place: Place) -> bool:
    """Whether the file says of a record batch what the index says."""
    if (line.offset, line.length, line.crc) != (place.offset, place.length, place.crc):
        return False
    if line.shard != shard or line.rows != place.count or line.flags != place.flags:
        return False
    if place.flags & RELATIVE:
        return place.span == place.count
    return (line.first, line.last) == (first, (first or 0) + place.span - 1)


def _rows(shard: int, first: int | None, place: Place) -> str:
    if first is None:
        return f"{place.count} staged rows of shard {shard}"
    return f"the rows {first} to {first + place.span - 1} of shard {shard}"


def check_extents(state: State, report: Report) -> None:
    """Every stored place is within an extent of its home: by these, rows are found for sealing."""
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
            place = decode_place(value)
        except MillraceError as error:
            report.found(INDEX_FILE, None, f"block {key.hex()}: {error.message}")
            continue
        home = (place.sealed, place.home)
        if home not in known:
            low, high = extents_range(place.home, sealed=place.sealed)
            extents = list(all_cells(cells, Table.BLOCKS, low, high))
            # Up to each extent, the highest key that any of them reaches.
            highest = list(accumulate((last for _, last in extents), max))
            known[home] = [extent_low(name) for name, _ in extents], highest
        lows, highest = known[home]
        at = bisect_right(lows, key) - 1
        if at < 0 or highest[at] < key:
            where = "sealed file" if place.sealed else "generation"
            what = f"block {key.hex()} lies in {where} {place.home}, which does not list it"
            report.found(INDEX_FILE, None, what)
