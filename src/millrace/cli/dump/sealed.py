"""`millrace dump PATH sealed [FILE]`: the sealed files, or the record batches of one."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.cli.bounds import LISTED_MAX
from millrace.cli.dump.table import DumpColumn, DumpOutput
from millrace.cli.folder import DamageError, Folder, FolderError
from millrace.cli.formatting import Fields, size_text
from millrace.core.format.block import FLAG_DELETES, FLAG_HEADERS, FLAG_KEYS
from millrace.errors import Corrupt
from millrace.store.row_location import COMPRESSED, RELATIVE
from millrace.store.sealed import (
    FOLDER,
    SUFFIX,
    BatchEntry,
    file_name,
    file_number,
    read_footer,
)

FILES = (
    DumpColumn("file", "file"),
    DumpColumn("size", "size", is_number=True),
    DumpColumn("batches", "batches", is_number=True),
    DumpColumn("rows", "rows", is_number=True),
    DumpColumn("shards", "shards"),
)
BATCHES = (
    DumpColumn("batch", "batch", is_number=True),
    DumpColumn("shard", "shard", is_number=True),
    DumpColumn("seqs", "seqs"),
    DumpColumn("rows", "rows", is_number=True),
    DumpColumn("flags", "holds"),
    DumpColumn("offset", "offset", is_number=True),
    DumpColumn("length", "length", is_number=True),
    DumpColumn("crc", "checksum"),
)

_FLAGS = {
    FLAG_KEYS: "keys",
    FLAG_HEADERS: "headers",
    FLAG_DELETES: "deletes",
    RELATIVE: "staged",
    COMPRESSED: "compressed",
}


def flag_names(flags: int) -> list[str]:
    """Return the names of the columns and traits that the flags of a block mean."""
    return [name for flag, name in _FLAGS.items() if flags & flag]


def numbers(folder: Folder) -> list[int]:
    """Return the numbers of the sealed files present, in the index or not."""
    found = (file_number(name) for name in folder.disk.names(FOLDER))
    return [number for number in found if number is not None]


def dump_sealed(folder: Folder, output: DumpOutput, name: str | None) -> None:
    """Print sealed files by their own footers; the index is not read."""
    if name is not None:
        _dump_file(folder, output, _number(folder, name))
        return
    damaged: list[str] = []

    def files() -> Iterator[tuple[Fields, Fields]]:
        for number in numbers(folder):
            size = (folder.path / file_name(number)).stat().st_size
            try:
                lines = read_footer(folder.disk, number)
            except Corrupt as error:
                damaged.append(str(error))
                yield _problem_fields(number, size, str(error))
                continue
            shards = sorted({line.shard for line in lines})
            fields: Fields = {
                "file": file_name(number),
                "size": size,
                "batches": len(lines),
                "rows": sum(line.rows for line in lines),
                "shards": shards,
            }
            yield fields, {**fields, "size": size_text(size), "shards": _some(shards)}

    if not output.table("file", FILES, files()) and not output.is_json:
        output.write("file", {}, ["there are no sealed files"])
    if damaged:
        raise _damage(damaged[0])


def _dump_file(folder: Folder, output: DumpOutput, number: int) -> None:
    try:
        lines = read_footer(folder.disk, number)
    except Corrupt as error:
        raise _damage(str(error)) from error
    output.table("batch", BATCHES, (_batch(at, line) for at, line in enumerate(lines)))


def _batch(at: int, line: BatchEntry) -> tuple[Fields, Fields]:
    fields: Fields = {
        "batch": at,
        "shard": line.shard,
        "first": line.first,
        "last": line.last,
        "rows": line.rows,
        "flags": flag_names(line.flags),
        "offset": line.offset,
        "length": line.length,
        "crc": f"{line.crc:08x}",
    }
    texts: Fields = {
        **fields,
        "seqs": f"{line.first}-{line.last}",
        "flags": ", ".join(flag_names(line.flags)) or None,
    }
    return fields, texts


def _number(folder: Folder, name: str) -> int:
    """Return the number of a file, given by number or by name, with or without folder."""
    stem = name.removeprefix(f"{FOLDER}/").removesuffix(SUFFIX)
    known = numbers(folder)
    if stem.isdecimal() and int(stem) in known:
        return int(stem)
    shown = ", ".join(map(str, known[:LISTED_MAX])) or "none"
    raise FolderError(f"there is no sealed file {name!r}", f"there are the numbers {shown}")


def _problem_fields(number: int, size: int, problem: str) -> tuple[Fields, Fields]:
    fields: Fields = {"file": file_name(number), "size": size, "problem": problem}
    return fields, {"file": file_name(number), "size": size_text(size), "shards": "DAMAGED"}


def _some(shards: list[int]) -> str:
    shown = ", ".join(map(str, shards[:LISTED_MAX]))
    return shown if len(shards) <= LISTED_MAX else f"{shown}, … ({len(shards)} in all)"


def _damage(message: str) -> DamageError:
    return DamageError(message, "`millrace check` lists the rows that it held")
