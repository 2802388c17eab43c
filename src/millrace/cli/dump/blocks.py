"""`millrace dump PATH blocks QUEUE`: where the rows of a queue lie."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.cli.dump.sealed import flag_names
from millrace.cli.folder import State
from millrace.cli.show import Column, Fields, Output, escaped, note, time_text
from millrace.core.model import Kind
from millrace.store.place import Place
from millrace.store.sealed import file_name

COLUMNS = (
    Column("rows_at", "seqs"),
    Column("count", "rows", is_number=True),
    Column("where", "where"),
    Column("offset", "offset", is_number=True),
    Column("length", "length", is_number=True),
    Column("time", "time of the first"),
    Column("holds", "holds"),
)


def dump_blocks(state: State, output: Output, queue: str) -> None:
    """Show every place, visible rows first, then stages."""
    shard = state.shard(queue)
    files = {segment.generation: segment.name for segment in state.replay.survey.used}

    def line(place: Place, at: Fields, text: str) -> tuple[Fields, Fields]:
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
        blocks = state.store.layered.blocks
        for first, place in blocks.between(found.id, 1, found.meta.last_seq):
            yield line(place, {"first": first}, f"{first}-{first + place.span - 1}")
        for key in state.store.cells_of(shard, Kind.STAGE):
            name = key[1:].decode()
            for ordinal, place in blocks.staged(found.id, name):
                stage: Fields = {"stage": escaped(name), "ordinal": ordinal}
                yield line(place, stage, f'stage "{escaped(name)}"')

    if not output.table("block", COLUMNS, lines()):
        note(f"{queue} has no rows")
