"""Codec of the keys and values of the index; see `docs/formats/index.md`.

Rule 1: keys are big-endian, so that they sort like the numbers in them.
Rule 2: a value above the size limit of a cell is split into parts; the first part has their number.
Rule 3: nothing here does I/O; bytes come in and go out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import msgspec

from millrace import limits
from millrace.core.state.fold import ShardMeta
from millrace.decoding import msgpack_decoder
from millrace.errors import Corrupt

_NUMBER = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_PART = struct.Struct(">H")

_TOP = 1 << 63
"""Bit of the shard's number in keys of BLOCKS that belong to a stage."""

_EXTENTS = b"\xff" * 8
"""Prefix of the extents in BLOCKS; no shard has this number."""

PART_BYTES = limits.CELL_BYTES_MAX - _PART.size

_encode = msgspec.msgpack.Encoder().encode

number_bytes = _NUMBER.pack


def number_of(data: bytes) -> int:
    return int.from_bytes(data, "big")


# --- Values in parts ---------------------------------------------------------------------------


def parts(key: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    """Return the cells that hold `value` under `key`."""
    count = max(1, -(-len(value) // PART_BYTES))
    cells = [
        (key + _PART.pack(at), value[at * PART_BYTES : (at + 1) * PART_BYTES])
        for at in range(count)
    ]
    cells[0] = (cells[0][0], _PART.pack(count) + cells[0][1])
    return cells


def first_part(key: bytes) -> bytes:
    return key + b"\0\0"


def part_count(first: bytes | None) -> int:
    """Return the number of parts of the value with this first part."""
    return 0 if first is None else int(_PART.unpack_from(first)[0])


def part_keys(key: bytes, low: int, high: int) -> list[bytes]:
    """Return the keys of the parts [low, high)."""
    return [key + _PART.pack(at) for at in range(low, high)]


def joined(cells: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Join parts; return key → whole value, in the order of the keys.

    Raises:
        Corrupt: a part is missing.
    """
    whole: dict[bytes, bytes] = {}
    parts_by_key: dict[bytes, dict[int, bytes]] = {}
    for key, value in cells:
        if key[-2:] == b"\0\0" and value[:2] == b"\0\1":
            # The usual case: one part.
            whole[key[:-2]] = value[2:]
        else:
            parts_by_key.setdefault(key[:-2], {})[number_of(key[-2:])] = value
    for key, pieces in parts_by_key.items():
        count = part_count(pieces.get(0, b"\0\0"))
        if count != len(pieces) or sorted(pieces) != list(range(count)):
            raise Corrupt(f"the value under {key.hex()} has {len(pieces)} of its {count} parts")
        pieces[0] = pieces[0][_PART.size :]
        if key in whole:
            raise Corrupt(f"the value under {key.hex()} has more parts than it says")
        whole[key] = b"".join(pieces[at] for at in range(count))
    return dict(sorted(whole.items())) if parts_by_key else whole


# --- META: shard → counters and state ----------------------------------------------------------


class StoredShard(msgspec.Struct, frozen=True, array_like=True):
    """State of a shard in the index. Positional: append, never reorder."""

    meta: ShardMeta
    gone: int = 0
    """Rows up to it are dead for all readers, and their bytes and marks are reclaimed."""
    kept_from: int = 0
    """No row up to it is kept any more."""
    stored: tuple[int, ...] = ()
    """Pins under which DEATHS may have marks."""
    sources: dict[int, tuple[int, ...]] = {}
    """Interval → pins of the intervals merged into it that DEATHS still has separately."""
    uses: int = 0
    """Bit set of the marks that were ever made."""
    number: int = 0
    """Number under which the index holds it after a resync has made a copy; 0: the shard's own."""


_decode_shard = msgpack_decoder(StoredShard).decode


def encode_shard(stored: StoredShard) -> bytes:
    return _encode(stored)


def decode_shard(data: bytes) -> StoredShard:
    try:
        return _decode_shard(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"what the index knows of a shard does not decode: {error}") from error


# --- CELLS, KEYS, BLOCKS, DEATHS ---------------------------------------------------------------


def shard_range(shard: int) -> tuple[bytes, bytes]:
    """Return the key range (end exclusive) of a shard's entries in any table, without stages."""
    return _NUMBER.pack(shard), _NUMBER.pack(shard + 1)


def block_key(shard: int, first: int) -> bytes:
    """Return the key of the block of visible rows that begins at this seq."""
    return _PAIR.pack(shard, first)


def first_of(key: bytes) -> int:
    return number_of(key[8:16])


def stages_range(shard: int) -> tuple[bytes, bytes]:
    """Return the key range (end exclusive) of the blocks of all stages of a shard."""
    return _NUMBER.pack(shard | _TOP), _NUMBER.pack((shard | _TOP) + 1)


def stage_key(shard: int, name: str, ordinal: int) -> bytes:
    return b"%s%s\0%s" % (_NUMBER.pack(shard | _TOP), name.encode(), _NUMBER.pack(ordinal))


def stage_range(shard: int, name: str) -> tuple[bytes, bytes]:
    prefix = _NUMBER.pack(shard | _TOP) + name.encode()
    return prefix + b"\0", prefix + b"\1"


def stage_of(key: bytes) -> tuple[int, str, int] | None:
    """Return shard, stage and ordinal of a staged block's key; None for visible rows."""
    shard = number_of(key[:8])
    if not shard & _TOP:
        return None
    return shard ^ _TOP, key[8:-9].decode(), number_of(key[-8:])


def shard_of(key: bytes) -> int:
    """Return the shard of a block's key, staged or visible."""
    return number_of(key[:8]) & ~_TOP


def extents_range(home: int, *, sealed: bool) -> tuple[bytes, bytes]:
    prefix = _EXTENTS + (b"\2" if sealed else b"\1")
    return prefix + _NUMBER.pack(home), prefix + _NUMBER.pack(home + 1)


def extent_key(home: int, low: bytes, *, sealed: bool) -> bytes:
    """Return the key of an extent: a range of block keys that covers blocks in `home`.

    `low` is the first block key of the range; the value of the extent is the last one.
    """
    return extents_range(home, sealed=sealed)[0] + low


def extent_low(key: bytes) -> bytes:
    return key[17:]


_MARKS = struct.Struct(">QQBQ")


def deaths_key(shard: int, pin: int, mark: int, chunk: int) -> bytes:
    return _MARKS.pack(shard, pin, mark, chunk)


def chunk_of(key: bytes) -> int:
    return number_of(key[17:])


# --- FILES, NODE -------------------------------------------------------------------------------


class FileFacts(msgspec.Struct, frozen=True, array_like=True):
    """Metadata of a sealed file in the index. Positional: append, never reorder."""

    size: int
    rows: int
    dead: int = 0
    """Estimated number of dead rows; counted exactly before the file is rewritten."""
    dropping: bool = False
    """True if the file is unreferenced and being removed."""
    spans: dict[int, tuple[int, int]] = {}
    """Shard → first and last seq of its rows; only if there are few shards."""


FileSpans = dict[int, list[tuple[int, int, int, FileFacts]]]
"""Shard → (first seq, last seq, file number, metadata of the file)."""

_decode_file = msgpack_decoder(FileFacts).decode


def encode_file(facts: FileFacts) -> bytes:
    return _encode(facts)


def decode_file(data: bytes) -> FileFacts:
    try:
        return _decode_file(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"what the index knows of a sealed file does not decode: {error}") from error


MARK_KEY = b"mark"
"""Key of the replay mark: generation, offset, checksum and serial number."""

NEEDED_KEY = b"needed"
"""Key of the oldest log generation that the index refers to."""

NEXT_FILE_KEY = b"file"
"""Key of the next file number: sealed files from this number on are unfinished, and ignored."""

GROUP_PREFIX = b"group"
FACT_PREFIX = b"fact"
DROPPED_PREFIX = b"dropped"
"""Prefix of the numbers under which the index holds garbage: dropped shards, and replaced or
incomplete copies of resyncs."""

COPY_PREFIX = b"copy"
"""Prefix of the numbers of completed copies of resyncs → their shards."""

FIRST_COPY = 1 << 62
"""First number for the copies of resyncs; no shard has such a number."""


def group_key(group: int) -> bytes:
    return GROUP_PREFIX + group.to_bytes(4, "big")


def fact_key(group: int) -> bytes:
    return FACT_PREFIX + group.to_bytes(4, "big")


def dropped_key(number: int) -> bytes:
    return DROPPED_PREFIX + _NUMBER.pack(number)


def copy_key(number: int) -> bytes:
    return COPY_PREFIX + _NUMBER.pack(number)


def prefixed(cells: Iterable[tuple[bytes, bytes]], prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the cells whose keys begin with `prefix`, without the prefix."""
    for key, value in cells:
        if key.startswith(prefix):
            yield key[len(prefix) :], value
