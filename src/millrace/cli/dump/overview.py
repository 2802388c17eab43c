"""`millrace dump PATH`: an overview of a folder's contents."""

from __future__ import annotations

import os
from collections.abc import Iterator

from millrace.cli.bounds import IDENTITY_BYTES
from millrace.cli.dump.sealed import numbers
from millrace.cli.dump.table import DumpColumn, DumpOutput
from millrace.cli.folder import (
    INDEX,
    LOG,
    Folder,
    FolderState,
)
from millrace.cli.formatting import Fields, Value, escaped, size_text
from millrace.cli.wal_records import (
    SegmentFile,
    WalGap,
    list_segments,
    read_records,
)
from millrace.core.cells import Kind
from millrace.core.format.codec import decode_cell
from millrace.core.model import CATALOG, Death
from millrace.core.spec import QueueSpec
from millrace.core.state.fold import ShardMeta
from millrace.node import IDENTITY, LOCAL, LOCAL_FACT, NODE, NODE_FACT
from millrace.store.sealed import file_name
from millrace.wal.disk import birth_ns
from millrace.wal.record import END, RecordHeader, record_span

SEGMENTS = (
    DumpColumn("file", "segment"),
    DumpColumn("generation", "generation", is_number=True),
    DumpColumn("state", "state"),
    DumpColumn("records", "records"),
    DumpColumn("end_marks", "end marks", is_number=True),
    DumpColumn("used", "used", is_number=True),
)
GROUPS = (
    DumpColumn("group", "group", is_number=True),
    DumpColumn("applied", "applied index", is_number=True),
    DumpColumn("epoch", "epoch", is_number=True),
    DumpColumn("history", "history"),
)
SHARDS = (
    DumpColumn("shard", "shard", is_number=True),
    DumpColumn("queue", "queue"),
    DumpColumn("settings", "settings"),
    DumpColumn("index", "index", is_number=True),
    DumpColumn("last_seq", "last seq", is_number=True),
    DumpColumn("published", "published", is_number=True),
    DumpColumn("live", "live", is_number=True),
    DumpColumn("died", "died"),
    DumpColumn("cells", "cells", is_number=True),
)
FILES = (
    DumpColumn("file", "sealed file"),
    DumpColumn("size", "size", is_number=True),
    DumpColumn("rows", "rows", is_number=True),
    DumpColumn("dead", "dead (about)", is_number=True),
    DumpColumn("state", "state"),
)


def dump_overview(state: FolderState, output: DumpOutput) -> None:
    """Print identity, log, commit groups, shards and sealed files."""
    _show_folder(state, output)
    output.heading("log")
    output.table("segment", SEGMENTS, _segments(state))
    if state.store.layered.groups:
        output.heading("commit groups")
        output.table("group", GROUPS, _groups(state))
    if state.store.layered.all():
        output.heading("shards")
        output.table("shard", SHARDS, (_shard(state, *found) for found in state.shards()))
    if numbers(state.folder) or state.store.files():
        output.heading("sealed files")
        output.table("file", FILES, _files(state))


def _show_folder(state: FolderState, output: DumpOutput) -> None:
    folder, store, use = state.folder, state.store, state.use
    mark, end = store.mark, state.replay.end
    log_id = state.replay.survey.log_id
    fields: dict[str, Value] = {
        "path": str(folder.path),
        "identity": identity(folder),
        "is_copy": is_copy(state),
        "in_use": use.is_in_use,
        "pid": use.pid if use.is_in_use else None,
        "log_id": log_id.hex() if log_id else None,
        "mark": None if mark is None else dict(mark._asdict()),
        "needed_from": store.needed,
        "end": dict(end._asdict()),
        "records_after_mark": state.records,
        "index_bytes": _size(folder, f"{INDEX}/data.mdb"),
    }
    begin = "none yet" if mark is None else _mark_text(mark.serial, mark.generation, mark.offset)
    lines = [
        f"folder      {escaped(str(folder.path))}",
        f"identity    {fields['identity'] or 'none'}{', a copy' if fields['is_copy'] else ''}",
        f"in use      {f'by {use.owner}' if use.is_in_use else 'no'}",
        f"log         id {fields['log_id'] or 'none'}, next record {end.serial}",
        f"checkpoint  {begin}; {state.records} records after it; "
        f"generations from {store.needed} on are needed",
        f"index       {size_text(_size(folder, f'{INDEX}/data.mdb'))}",
    ]
    output.write("folder", fields, lines)


def _mark_text(serial: int, generation: int, offset: int) -> str:
    return f"before record {serial} (generation {generation}, offset {offset})"


def identity(folder: Folder) -> str | None:
    """Return the folder's identity, which is written when it is created."""
    try:
        return escaped((folder.path / IDENTITY).read_bytes()[:IDENTITY_BYTES])
    except OSError:
        return None


def is_copy(state: FolderState) -> bool:
    """Return True if the identity file differs from the one in the log: a copied folder."""
    known = state.facts.get(NODE)
    path = state.folder.path / IDENTITY
    if known is None or len(known) != NODE_FACT.size:
        return False
    if not path.exists():
        return True
    found = (os.stat(path).st_ino, birth_ns(path))
    return NODE_FACT.unpack(known) != found


def _size(folder: Folder, name: str) -> int:
    path = folder.path / name
    return path.stat().st_size if path.exists() else 0


# --- Tables --------------------------------------------------------------------------------------


def _segments(state: FolderState) -> Iterator[tuple[Fields, Fields]]:
    for segment in list_segments(state.folder.disk, LOG):
        fields = segment_fields(state, segment)
        first, last = fields["first_serial"], fields["last_serial"]
        used = fields["used_bytes"]
        texts: Fields = {
            **fields,
            "generation": fields["generation"] or None,
            "records": f"{first}-{last}" if last else None,
            "used": size_text(used) if isinstance(used, int) else None,
        }
        yield fields, texts


def segment_fields(state: FolderState, segment: SegmentFile) -> dict[str, Value]:
    """Return the fields of a segment in its current generation."""
    first: RecordHeader | None = None
    last: RecordHeader | None = None
    used_bytes, gaps, end_marks = 0, 0, 0
    for found in read_records(state.folder.disk, segment):
        if isinstance(found, WalGap):
            gaps += 1
            continue
        last = found.header
        first = first or last
        used_bytes = found.offset + record_span(last.length)
        end_marks += last.kind == END
    if segment.header is None:
        standing = "ready" if segment.problem is None else f"unreadable: {segment.problem}"
    elif segment.generation < state.store.needed:
        standing = "free"
    else:
        standing = "needed" if not gaps else "DAMAGED"
    return {
        "file": segment.name,
        "size": segment.size,
        "generation": segment.generation or None,
        "state": standing,
        "first_serial": first.serial if first else None,
        "last_serial": last.serial if last else None,
        "end_marks": end_marks,
        "used_bytes": used_bytes,
    }


def _groups(state: FolderState) -> Iterator[tuple[Fields, Fields]]:
    for group, (applied, epoch) in sorted(state.store.layered.groups.items()):
        fact = state.facts.get(group)
        history = None
        if group == LOCAL and fact is not None and len(fact) == LOCAL_FACT.size:
            epoch, history = LOCAL_FACT.unpack(fact)
        fields: Fields = {
            "group": group,
            "applied": applied,
            "epoch": epoch,
            "history": history.hex() if history else None,
        }
        yield fields, fields


def _shard(state: FolderState, shard: int, meta: ShardMeta) -> tuple[Fields, Fields]:
    cells = state.store.cells_of(shard)
    spec = cells.get(bytes([Kind.SPEC]))
    settings = decode_cell(Kind.SPEC, spec) if spec is not None else QueueSpec()
    assert isinstance(settings, QueueSpec)
    queue = "(catalog)" if shard == CATALOG else state.names.get(shard)
    died = {death.name.lower(): meta.died[death] for death in Death if meta.died[death]}
    fields: dict[str, Value] = {
        "shard": shard,
        "queue": queue,
        "keyed": settings.keyed,
        "retention": settings.retention,
        "keep_deletes_ms": settings.keep_deletes_ms,
        "index": meta.index,
        "last_seq": meta.last_seq,
        "time_ms": meta.time_ms,
        "history": meta.history.hex(),
        "published": meta.published,
        "live": meta.live,
        "died": died,
        "floor": meta.floor,
        "pins": [interval.pin for interval in meta.intervals if interval.pin],
        "cells": len(cells),
    }
    words = ["keyed"] if settings.keyed else []
    words += ["log"] if settings.retention == "log" else []
    texts: Fields = {
        **fields,
        "settings": ", ".join(words) or "work",
        "died": ", ".join(f"{count} {why}" for why, count in died.items()) or None,
    }
    return fields, texts


def _files(state: FolderState) -> Iterator[tuple[Fields, Fields]]:
    known = state.store.files()
    there = set(numbers(state.folder))
    for number in sorted(there | known.keys()):
        facts = known.get(number)
        if facts is None:
            standing = "being made" if number >= state.store.next_file else "UNKNOWN to the index"
        elif facts.dropping:
            standing = "being removed"
        else:
            standing = "in use" if number in there else "MISSING"
        size = _size(state.folder, file_name(number))
        fields: Fields = {
            "file": file_name(number),
            "size": size,
            "rows": facts.rows if facts else None,
            "dead": facts.dead if facts else None,
            "state": standing,
        }
        yield fields, {**fields, "size": size_text(size)}
