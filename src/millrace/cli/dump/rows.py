"""`millrace dump PATH rows QUEUE`: messages, live or kept, in the order of their seqs."""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap64

from millrace.cli.describe import row_fields, row_text
from millrace.cli.folder import State
from millrace.cli.show import Column, Fields, Output, note, time_text
from millrace.core.fold import Reader
from millrace.core.model import Epoch, History, Kind, Row, ShardId
from millrace.core.view import View
from millrace.store.dead_rows import ASIDE, KEPT

COLUMNS = (
    Column("seq", "seq", is_number=True),
    Column("time", "time"),
    Column("state", "state"),
    Column("message", "message"),
)


def dump_rows(state: State, output: Output, queue: str, *, after: int, limit: int) -> None:
    """Show up to `limit` rows after a seq, and what workers have to do with each."""
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

    if not output.table("row", COLUMNS, lines()):
        note(f"{queue} has no rows after {after}")
    for seq in more:
        note(f"more rows follow: --after {seq}")


def _rows(state: State, shard: int, after: int) -> Iterator[Row]:
    """Live and kept rows."""
    last = state.store.layered.must(shard).meta.last_seq
    for batch in state.store.asking.scan(shard, after, last, Reader(retain=True)):
        for seq in batch.column("seq").to_numpy().tolist():
            yield from state.store.asking.rows(shard, BitMap64([seq]))


def _standing(state: State, view: View, shard: int, row: Row) -> Fields:
    """Whether workers get the row, or who has it."""
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
    if row.seq in state.store.layered.marks.bits(found, [0], ASIDE, row.seq, row.seq):
        return {"state": "aside"}
    return {"state": "ready"}


def _standing_text(standing: Fields) -> str:
    deadline = standing.get("deadline_ms")
    if isinstance(deadline, int):
        return f"leased until {time_text(deadline)}"
    return str(standing["state"])
