"""`millrace dump PATH rows|blocks QUEUE`: the messages of a queue, and where they are stored."""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap64

from millrace.cli.describe import row_fields, row_text
from millrace.cli.dump.sealed import flag_names
from millrace.cli.dump.table import DumpColumn, DumpOutput, note
from millrace.cli.folder import FolderState
from millrace.cli.formatting import Fields, escaped, time_text
from millrace.core.cells import Kind
from millrace.core.model import Epoch, History, Row, ShardId
from millrace.core.state.fold import Reader
from millrace.core.state.view import View
from millrace.store.dead_rows import DEFERRED, KEPT
from millrace.store.row_location import RowLocation
from millrace.store.sealed import file_name

ROW_COLUMNS = (
    DumpColumn("seq", "seq", is_number=True),
    DumpColumn("time", "time"),
    DumpColumn("state", "state"),
    DumpColumn("message", "message"),
)


def dump_rows(
    state: FolderState, output: DumpOutput, queue: str, *, after: int, limit: int
) -> None:
    """Print up to `limit` rows after a seq, with their delivery states."""
    shard = state.shard(queue)
    meta = state.store.layered.must(shard).meta
    cells = [(Kind(key[0]), key[1:], value) for key, value in state.store.cells_of(shard).items()]
    view = View.load(ShardId(shard), Epoch(0), History(meta.history), meta, cells)
    more: list[int] = []

    def lines() -> Iterator[tuple[Fields, Fields]]:
        for count, row in enumerate(_rows(state, shard, after)):
            if count == limit:
                more.append(row.seq - 1)
                return
            standing = _standing(state, view, shard, row)
            fields = {**row_fields(row), **standing}
            texts: Fields = {
                "seq": row.seq,
                "time": time_text(row.time_ms),
                "state": _standing_text(standing),
                "message": row_text(row),
            }
            yield fields, texts

    if not output.table("row", ROW_COLUMNS, lines()):
        note(f"{queue} has no rows after {after}")
    for seq in more:
        note(f"more rows follow: --after {seq}")


def _rows(state: FolderState, shard: int, after: int) -> Iterator[Row]:
    """Yield live and kept rows after a seq."""
    last = state.store.layered.must(shard).meta.last_seq
    for batch in state.store.point_reads.scan(shard, after, last, Reader(retain=True)):
        for seq in batch.column("seq").to_numpy().tolist():
            yield from state.store.point_reads.rows(shard, BitMap64([seq]))


def _standing(state: FolderState, view: View, shard: int, row: Row) -> Fields:
    """Return the delivery state of a row."""
    lease = view.leases.get(view.holder.get(row.seq, 0))
    if lease is not None and row.seq in lease.open:
        deliveries, failures = lease.counts_of(row.seq)
        return {
            "state": "leased",
            "lease": lease.id,
            "deadline_ms": lease.deadline_of(row.seq),
            "deliveries": deliveries,
            "failures": failures,
        }
    if row.body is None:
        return {"state": "delete"}
    found = state.store.layered.must(shard)
    everyone = [interval.pin for interval in found.meta.intervals]
    if row.seq in state.store.layered.marks.bits(found, everyone, KEPT, row.seq, row.seq):
        return {"state": "kept"}
    if lease is not None:
        deliveries, failures = lease.counts_of(row.seq)
        return {"state": "returned", "deliveries": deliveries, "failures": failures}
    if row.seq in state.store.layered.marks.bits(found, [0], DEFERRED, row.seq, row.seq):
        return {"state": "aside"}
    return {"state": "ready"}


def _standing_text(standing: Fields) -> str:
    deadline = standing.get("deadline_ms")
    if isinstance(deadline, int):
        return f"leased until {time_text(deadline)}"
    return str(standing["state"])


BLOCK_COLUMNS = (
    DumpColumn("rows_at", "seqs"),
    DumpColumn("count", "rows", is_number=True),
    DumpColumn("where", "where"),
    DumpColumn("offset", "offset", is_number=True),
    DumpColumn("length", "length", is_number=True),
    DumpColumn("time", "time of the first"),
    DumpColumn("holds", "holds"),
)


def dump_blocks(state: FolderState, output: DumpOutput, queue: str) -> None:
    """Print the location of every block, visible rows first, then stages."""
    shard = state.shard(queue)
    files = {segment.generation: segment.name for segment in state.replay.survey.used}

    def line(place: RowLocation, at: Fields, text: str) -> tuple[Fields, Fields]:
        file = file_name(place.home) if place.sealed else files.get(place.home)
        fields: Fields = {
            **at,
            "rows": place.count,
            "span": place.span,
            "sealed": place.sealed,
            "generation": None if place.sealed else place.home,
            "file": file,
            "offset": place.offset,
            "length": place.length,
            "time_ms": place.time_ms,
            "last_ms": place.last_ms,
            "flags": flag_names(place.flags),
        }
        where = f"{file or '(gone)'}"
        if not place.sealed:
            where += f" (generation {place.home})"
        texts: Fields = {
            **fields,
            "rows_at": text,
            "count": place.count,
            "where": where,
            "time": time_text(place.time_ms),
            "holds": ", ".join(flag_names(place.flags)) or None,
        }
        return fields, texts

    def lines() -> Iterator[tuple[Fields, Fields]]:
        found = state.store.layered.must(shard)
        blocks = state.store.layered.row_index
        for first, place in blocks.between(found.id, 1, found.meta.last_seq):
            yield line(place, {"first": first}, f"{first}-{first + place.span - 1}")
        for key in state.store.cells_of(shard, Kind.STAGE):
            name = key[1:].decode()
            for ordinal, place in blocks.staged(found.id, name):
                stage: Fields = {"stage": escaped(name), "ordinal": ordinal}
                yield line(place, stage, f'stage "{escaped(name)}"')

    if not output.table("block", BLOCK_COLUMNS, lines()):
        note(f"{queue} has no rows")
