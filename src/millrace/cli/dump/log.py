"""`millrace dump PATH log`: records, entries, batches and changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millrace.cli.bounds import HEX_BYTES
from millrace.cli.describe import entry_fields, entry_lines
from millrace.cli.dump.table import DumpOutput, note
from millrace.cli.folder import (
    LOG,
    DamageError,
    Folder,
    FolderError,
)
from millrace.cli.formatting import Fields, Value
from millrace.cli.wal_records import (
    SegmentFile,
    WalGap,
    WalRecord,
    list_segments,
    read_records,
)
from millrace.core.changes import Entry
from millrace.core.format.codec import decode_entries
from millrace.errors import Corrupt
from millrace.wal.record import END


class LogSelection(NamedTuple):
    """Options that select records of the log."""

    first: int
    limit: int
    generation: int | None
    with_bytes: bool


def dump_log(folder: Folder, output: DumpOutput, wanted: LogSelection) -> None:
    """Print the records in log order, and the damage between them."""
    shown, damaged = 0, 0
    for found in _records(folder, wanted):
        if isinstance(found, WalGap):
            damaged += 1
            _show_gap(output, found)
            continue
        if found.header.serial < wanted.first:
            continue
        if shown == wanted.limit:
            note(f"more records follow: --from {found.header.serial}")
            break
        shown += 1
        damaged += _show_record(output, found, with_bytes=wanted.with_bytes)
    if damaged:
        raise DamageError(
            f"{damaged} places in the log could not be read",
            "`millrace check` verifies the whole folder; restore it from a backup or a replica",
        )


def _records(folder: Folder, wanted: LogSelection) -> Iterator[WalRecord | WalGap]:
    segments = [one for one in list_segments(folder.disk, LOG) if one.header is not None]
    if wanted.generation is not None:
        known = [str(one.generation) for one in segments]
        segments = [one for one in segments if one.generation == wanted.generation]
        if not segments:
            raise FolderError(
                f"the log has no generation {wanted.generation}",
                f"it has {', '.join(known) or 'none'}",
            )
    for segment, following in zip(segments, [*segments[1:], None], strict=True):
        if following is None or not _is_before(following, wanted.first):
            yield from read_records(folder.disk, segment)


def _is_before(following: SegmentFile, serial: int) -> bool:
    """Return True if all records before this segment have lower numbers."""
    return following.header is not None and following.header.first_serial <= serial


def _show_gap(output: DumpOutput, gap: WalGap) -> None:
    output.write(
        "damage",
        {"file": gap.segment.name, "offset": gap.offset, "bytes": gap.end - gap.offset},
        [
            f"damage  {gap.segment.name}  offset {gap.offset}  "
            f"no whole record up to offset {gap.end}"
        ],
    )


def _show_record(output: DumpOutput, record: WalRecord, *, with_bytes: bool) -> bool:
    """Print a record; return True if it is damaged."""
    problem, entries = None, list[Entry]()
    try:
        entries = decode_entries(record.payload)
        described: list[Value] = [entry_fields(entry) for entry in entries]
        lines = [line for entry in entries for line in entry_lines(entry)]
    except Corrupt as error:
        problem, described, lines = str(error), [], [f"  {error}"]
    if not record.follows:
        problem = problem or "it does not follow the record before it"
    fields: dict[str, Value] = {**_header_fields(record), "entries": described, "problem": problem}
    if with_bytes:
        fields["payload"] = record.payload.hex()
        lines += _hex_lines(record)
    output.write("record", fields, [_header_line(record, problem), *lines])
    return problem is not None


def _header_fields(record: WalRecord) -> Fields:
    header = record.header
    return {
        "serial": header.serial,
        "kind": "end" if header.kind == END else "data",
        "generation": header.generation,
        "file": record.segment.name,
        "offset": record.offset,
        "length": header.length,
        "crc": f"{header.crc:08x}",
        "prev_crc": f"{header.prev_crc:08x}",
    }


def _header_line(record: WalRecord, problem: str | None) -> str:
    header = record.header
    what = "end mark" if header.kind == END else f"{header.length} bytes"
    line = (
        f"record {header.serial}  {record.segment.name}  generation {header.generation}  "
        f"offset {record.offset}  {what}  checksum {header.crc:08x}"
    )
    return line if problem is None else f"{line}  DAMAGED: {problem}"


def _hex_lines(record: WalRecord) -> Iterator[str]:
    payload = record.payload
    for at in range(0, len(payload), HEX_BYTES):
        piece = bytes(payload[at : at + HEX_BYTES])
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        yield f"  {at:08x}  {piece.hex(' '):<{3 * HEX_BYTES}} {text}"
