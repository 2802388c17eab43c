"""Encodes and decodes entries and cells, byte by byte as in `docs/formats/log.md`.

The bytes come from a record whose checksum was verified: bytes that do not decode were written by a
newer version, or are a defect, and are `Corrupt` either way. A damaged block alone is no reason to
refuse the record: its batch names its shard and its seqs, and its rows are quarantined.
"""

from __future__ import annotations

import struct

import msgspec

from millrace.core.cells import CELL_TYPES, Cell, Kind
from millrace.core.changes import Batch, Changes, Entry, EntryKind
from millrace.core.format.block import Block
from millrace.core.format.column import Buffer
from millrace.core.model import (
    Epoch,
    GroupId,
    History,
    Index,
    Millis,
    ShardId,
)
from millrace.decoding import msgpack_decoder
from millrace.errors import Corrupt

ENTRY = struct.Struct("<IIQQ16sQB7x")
"""Group, batches, epoch, index, history, length of the whole entry, kind."""

BATCH = struct.Struct("<QQqIIQ")
"""Shard, index, time, blocks, length of the changes, length of the whole batch."""

# Dictionaries have integers as keys, which no order of msgspec sorts: their writers sort them.
_encode = msgspec.msgpack.Encoder().encode
_decode_changes = msgpack_decoder(Changes).decode
_cell_decoders = {kind: msgpack_decoder(cell) for kind, cell in CELL_TYPES.items()}
_PADS = [bytes(n) for n in range(8)]


def encode_cell(cell: Cell) -> bytes:
    return _encode(cell)


def decode_cell(kind: Kind, data: bytes) -> Cell:
    try:
        return _cell_decoders[kind].decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"a cell of kind {kind.name} does not decode: {error}") from error


def encode_entry(entry: Entry, base: int) -> list[Buffer]:
    """Return the entry as buffers; `base` is its offset in the payload, and blocks learn their
    places."""
    out: list[Buffer] = [b""]
    length = ENTRY.size
    for batch in entry.batches:
        length = _encode_batch(batch, out, length, base)
    if entry.fact:
        out.append(entry.fact)
        length += len(entry.fact)
        out.append(_PADS[-len(entry.fact) & 7])
        length += -len(entry.fact) & 7
    out[0] = ENTRY.pack(
        entry.group,
        len(entry.batches) if entry.kind is not EntryKind.FACT else len(entry.fact),
        entry.epoch,
        entry.index,
        entry.history,
        length,
        entry.kind,
    )
    return out


def _encode_batch(batch: Batch, out: list[Buffer], at: int, base: int) -> int:
    head = len(out)
    out.append(b"")
    changes = _encode(batch.changes)
    start = at
    at += BATCH.size + len(changes)
    pad = -len(changes) & 7
    at += pad
    batch.places = []
    for block in batch.blocks:
        size = block.encode_into(out)
        batch.places.append((base + at, size))
        at += size
    out[head] = (
        BATCH.pack(
            batch.shard, batch.index, batch.time_ms, len(batch.blocks), len(changes), at - start
        )
        + changes
        + _PADS[pad]
    )
    return at


def decode_entries(payload: memoryview) -> list[Entry]:
    """Return every entry of a record's payload; blocks lie over the same bytes."""
    entries: list[Entry] = []
    at = 0
    try:
        while at < len(payload):
            entry, at = _decode_entry(payload, at)
            entries.append(entry)
    except (struct.error, msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise Corrupt(f"a record's payload does not decode at byte {at}: {error}") from error
    return entries


def _decode_entry(payload: memoryview, at: int) -> tuple[Entry, int]:
    group, count, epoch, index, history, length, kind = ENTRY.unpack_from(payload, at)
    end = at + length
    if length < ENTRY.size or end > len(payload):
        raise Corrupt(f"an entry at byte {at} is longer than its record")
    entry = Entry(
        GroupId(group),
        Epoch(epoch),
        Index(index),
        History(history),
        [],
        kind=EntryKind(kind),
    )
    at += ENTRY.size
    if entry.kind is EntryKind.FACT:
        if at + count > end:
            raise Corrupt(f"a fact at byte {at} is longer than its entry")
        entry.fact = bytes(payload[at : at + count])
        return entry, end
    for _ in range(count):
        batch, at = _decode_batch(payload[:end], at)
        entry.batches.append(batch)
    if at != end:
        raise Corrupt(f"an entry ends at byte {at}, not at {end} as it says")
    return entry, end


def _decode_batch(payload: memoryview, at: int) -> tuple[Batch, int]:
    shard, index, time_ms, blocks, size, length = BATCH.unpack_from(payload, at)
    end = at + length
    if end > len(payload) or at + BATCH.size + size > end:
        raise Corrupt(f"a batch at byte {at} is longer than its entry")
    at += BATCH.size
    changes = _decode_changes(payload[at : at + size])
    at += (size + 7) & ~7
    batch = Batch(ShardId(shard), Index(index), Millis(time_ms), changes, [])
    for _ in range(blocks):
        block, used = Block.decode_or_damaged(payload[at:end])
        batch.blocks.append(block)
        batch.places.append((at, used))
        at += used
    if at != end:
        raise Corrupt(f"a batch ends at byte {at}, not at {end} as it says")
    return batch, end
