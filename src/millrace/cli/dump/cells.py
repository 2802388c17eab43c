"""`millrace dump PATH cells`: cells of shards, and the raw tables of the index."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from millrace.cli.describe import cell_fields, cell_key, cell_text, kind_name
from millrace.cli.dump.table import DumpColumn, DumpOutput, note
from millrace.cli.folder import DamageError, FolderState
from millrace.cli.formatting import Fields, Value, escaped, ranges
from millrace.core.cells import Kind
from millrace.core.state.fold import RowMark
from millrace.errors import Corrupt
from millrace.store import chunk
from millrace.store.cells import Table
from millrace.store.dead_rows import DEFERRED, DELETE, ENDED
from millrace.store.index_codec import (
    chunk_of,
    decode_file,
    decode_shard,
    first_of,
    joined,
    number_of,
    stage_of,
)
from millrace.store.read_only_store import all_cells
from millrace.store.row_location import decode_location

CELLS = (
    DumpColumn("shard", "shard", is_number=True),
    DumpColumn("kind", "kind"),
    DumpColumn("key", "key"),
    DumpColumn("value", "value"),
)
ENTRIES = (DumpColumn("key", "key"), DumpColumn("value", "value"))

_EXTENTS = b"\xff" * 8


def dump_cells(
    state: FolderState, output: DumpOutput, *, shards: list[int], kind: Kind | None
) -> None:
    """Print cells as of the end of the log; of all shards if none is given."""
    damaged: list[str] = []

    def lines() -> Iterator[tuple[Fields, Fields]]:
        for shard in shards or state.store.layered.all():
            for key, value in state.store.cells_of(shard, kind).items():
                where: Fields = {
                    "shard": shard,
                    "kind": kind_name(key[0]),
                    "key": cell_key(key[0], key[1:]),
                }
                try:
                    fields = cell_fields(key[0], key[1:], value)
                except Corrupt as error:
                    damaged.append(str(error))
                    fields = {"problem": str(error)}
                yield {**where, "value": fields}, {**where, "value": cell_text(fields)}

    if not output.table("cell", CELLS, lines()):
        note("there are no such cells")
    if damaged:
        raise DamageError(damaged[0], "`millrace check` verifies the whole folder")


# --- Tables of the index -------------------------------------------------------------------------


def dump_table(state: FolderState, output: DumpOutput, table: Table) -> None:
    """Print a table of the index as stored: as of the last checkpoint, without the log."""
    describe = _DESCRIPTIONS[table]
    stored = all_cells(state.store.cells, table)
    if table in (Table.CELLS, Table.META):
        # Large values are stored in several parts.
        stored = iter(joined(stored).items())

    def lines() -> Iterator[tuple[Fields, Fields]]:
        for key, value in stored:
            where, fields = describe(key, value)
            named: Fields = {"table": table.name.lower(), "key": where, "value": fields}
            yield named, {"key": _plain(where), "value": cell_text(fields)}

    if not output.table("entry", ENTRIES, lines()):
        note(f"the table {table.name.lower()} is empty")


def _plain(fields: Fields) -> str:
    return "  ".join(f"{name} {value}" for name, value in fields.items())


def _node(key: bytes, value: bytes) -> tuple[Fields, Fields]:
    return {"name": escaped(key)}, {"hex": value.hex()}


def _meta(key: bytes, value: bytes) -> tuple[Fields, Fields]:
    stored = decode_shard(value)
    fields: dict[str, Value] = {
        name: msgspec.to_builtins(held, builtin_types=(bytes,))
        for name, held in (
            ("index", stored.meta.index),
            ("last_seq", stored.meta.last_seq),
            ("published", stored.meta.published),
            ("died", stored.meta.died),
            ("intervals", stored.meta.intervals),
            ("gone", stored.gone),
            ("kept_from", stored.kept_from),
            ("stored", stored.stored),
            ("sources", stored.sources),
            ("uses", stored.uses),
            ("number", stored.number),
        )
    }
    return {"shard": number_of(key)}, {**fields, "history": stored.meta.history.hex()}


def _cells(key: bytes, value: bytes) -> tuple[Fields, Fields]:
    where: Fields = {
        "shard": number_of(key[:8]),
        "kind": kind_name(key[8]),
        "key": cell_key(key[8], key[9:]),
    }
    return where, cell_fields(key[8], key[9:], value)


def _keys(key: bytes, value: bytes) -> tuple[Fields, Fields]:
    return {"shard": number_of(key[:8]), "key": escaped(key[8:])}, {"seq": number_of(value)}


def _blocks(key: bytes, value: bytes) -> tuple[Fields, Fields]:
    if key.startswith(_EXTENTS):
        home = "file" if key[8] == 2 else "generation"
        where: Fields = {"extent of": home, "number": number_of(key[9:17]), "from": key[17:].hex()}
        return where, {"upto": value.hex()}
    place = decode_location(value)
    stage = stage_of(key)
    if stage is not None:
        where = {"shard": stage[0], "stage": escaped(stage[1]), "ordinal": stage[2]}
    else:
        where = {"shard": number_of(key[:8]), "first": first_of(key)}
    return where, {
        "sealed": place.sealed,
        "home": place.home,
        "offset": place.offset,
        "length": place.length,
        "rows": place.count,
        "span": place.span,
    }


_MARKS = {DELETE: "delete", ENDED: "ended", DEFERRED: "aside"}
"""Marks that the store adds to those of the core."""


def _deaths(key: bytes, value: bytes) -> tuple[Fields, Fields]:
    number = chunk_of(key)
    mark = _MARKS.get(key[16]) or RowMark(key[16]).name.lower()
    where: Fields = {"shard": number_of(key[:8]), "pin": number_of(key[8:16]), "mark": mark}
    seqs = ranges(chunk.join([(number, chunk.unpack(value))]))
    return {**where, "chunk": number}, {"seqs": seqs}


def _files(key: bytes, value: bytes) -> tuple[Fields, Fields]:
    facts = decode_file(value)
    return {"file": number_of(key)}, {
        "size": facts.size,
        "rows": facts.rows,
        "dead": facts.dead,
        "dropping": facts.dropping,
        "spans": {str(shard): list(span) for shard, span in facts.spans.items()},
    }


_DESCRIPTIONS: dict[Table, Callable[[bytes, bytes], tuple[Fields, Fields]]] = {
    Table.NODE: _node,
    Table.META: _meta,
    Table.CELLS: _cells,
    Table.KEYS: _keys,
    Table.BLOCKS: _blocks,
    Table.DEATHS: _deaths,
    Table.FILES: _files,
}
