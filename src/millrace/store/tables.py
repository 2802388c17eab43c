"""Keys and values of the index, byte by byte in `docs/formats/index.md`.

Rule 1: keys are big-endian, so that they sort as the numbers in them do.
Rule 2: a value that is larger than a cell may be is cut into parts; the first part says how many.
Rule 3: nothing here reads or writes; bytes come in and go out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import msgspec

from millrace import limits
from millrace.core.fold import ShardMeta
from millrace.decoding import msgpack_decoder
from millrace.errors import Corrupt

_NUMBER = struct.Struct(">Q")
_PAIR = struct.Struct(">QQ")
_PART = struct.Struct(">H")

_TOP = 1 << 63
"""Set in the shard's number where a key of BLOCKS belongs to a stage."""

_EXTENTS = b"\xff" * 8
"""Prefix of the extents in BLOCKS; no shard has this number."""

PART_BYTES = limits.CELL_BYTES_MAX - _PART.size

_encode = msgspec.msgpack.Encoder().encode

number_bytes = _NUMBER.pack


def number_of(data: bytes) -> int:
    return int.from_bytes(data, "big")


# --- Values in parts ---------------------------------------------------------------------------


def parts(key: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    """The cells that hold `value` under `key`."""
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
    """How many parts the value has whose first part this is."""
    return 0 if first is None else int(_PART.unpack_from(first)[0])


def part_keys(key: bytes, low: int, high: int) -> list[bytes]:
    """The keys of the parts [low, high)."""
    return [key + _PART.pack(at) for at in range(low, high)]


def joined(cells: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Key → whole value, in the order of the keys.

    Raises:
        Corrupt: a part is missing.
    """
    whole: dict[bytes, bytes] = {}
    found: dict[bytes, dict[int, bytes]] = {}
    for key, value in cells:
        if key[-2:] == b"\0\0" and value[:2] == b"\0\1":
            # Most have one part.
            whole[key[:-2]] = value[2:]
        else:
            found.setdefault(key[:-2], {})[number_of(key[-2:])] = value
    for key, pieces in found.items():
        count = part_count(pieces.get(0, b"\0\0"))
        if count != len(pieces) or sorted(pieces) != list(range(count)):
            raise Corrupt(f"the value under {key.hex()} has {len(pieces)} of its {count} parts")
        pieces[0] = pieces[0][_PART.size :]
        if key in whole:
            raise Corrupt(f"the value under {key.hex()} has more parts than it says")
        whole[key] = b"".join(pieces[at] for at in range(count))
    return dict(sorted(whole.items())) if found else whole


# --- META: shard → what is known of it ---------------------------------------------------------


class StoredShard(msgspec.Struct, frozen=True, array_like=True):
    """What the index remembers of a shard. Positional: append, never reorder."""

    meta: ShardMeta
    gone: int = 0
    """Rows up to it are dead for everyone, and their bytes and marks are reclaimed."""
    kept_from: int = 0
    """Rows up to it are not kept any more."""
    stored: tuple[int, ...] = ()
    """The pins under which there may be marks in DEATHS."""
    sources: dict[int, tuple[int, ...]] = {}
    """Interval → the pins of those that were merged into it, and that DEATHS still tells apart."""
    uses: int = 0
    """Which marks were ever made, as bits."""
    number: int = 0
    """Under which number the index holds it, if not under the shard's own: a resync has made a new
    copy of it there."""


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
    """From which key to which (exclusive) a shard's entries lie, in any table but its stages."""
    return _NUMBER.pack(shard), _NUMBER.pack(shard + 1)


def block_key(shard: int, first: int) -> bytes:
    """Of the block of visible rows that begins at this seq."""
    return _PAIR.pack(shard, first)


def first_of(key: bytes) -> int:
    return number_of(key[8:16])


def stages_range(shard: int) -> tuple[bytes, bytes]:
    """From which key to which (exclusive) the blocks of all stages of a shard lie."""
    return _NUMBER.pack(shard | _TOP), _NUMBER.pack((shard | _TOP) + 1)


def stage_key(shard: int, name: str, ordinal: int) -> bytes:
    return b"%s%s\0%s" % (_NUMBER.pack(shard | _TOP), name.encode(), _NUMBER.pack(ordinal))


def stage_range(shard: int, name: str) -> tuple[bytes, bytes]:
    prefix = _NUMBER.pack(shard | _TOP) + name.encode()
    return prefix + b"\0", prefix + b"\1"


def stage_of(key: bytes) -> tuple[int, str, int] | None:
    """Shard, stage and ordinal of a staged block's key; None if it is that of visible rows."""
    shard = number_of(key[:8])
    if not shard & _TOP:
        return None
    return shard ^ _TOP, key[8:-9].decode(), number_of(key[-8:])


def shard_of(key: bytes) -> int:
    """Whose block it is, staged or visible."""
    return number_of(key[:8]) & ~_TOP


def extents_range(home: int, *, sealed: bool) -> tuple[bytes, bytes]:
    prefix = _EXTENTS + (b"\2" if sealed else b"\1")
    return prefix + _NUMBER.pack(home), prefix + _NUMBER.pack(home + 1)


def extent_key(home: int, low: bytes, *, sealed: bool) -> bytes:
    """Of a range of block keys among which are the blocks that lie in `home`; value: the last."""
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
    """What the index knows of a sealed file. Positional: append, never reorder."""

    size: int
    rows: int
    dead: int = 0
    """About how many of its rows nobody wants any more; counted exactly before it matters."""
    dropping: bool = False
    """Nothing refers to it any more, and it is being removed."""
    spans: dict[int, tuple[int, int]] = {}
    """Shard → from which seq to which its rows lie; only if there are few shards."""


FileSpans = dict[int, list[tuple[int, int, int, FileFacts]]]
"""Shard → (first seq, last seq, file, what is known of it)."""

_decode_file = msgpack_decoder(FileFacts).decode


def encode_file(facts: FileFacts) -> bytes:
    return _encode(facts)


def decode_file(data: bytes) -> FileFacts:
    try:
        return _decode_file(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"what the index knows of a sealed file does not decode: {error}") from error


MARK_KEY = b"mark"
"""Where replay begins: generation, offset, checksum and number."""

NEEDED_KEY = b"needed"
"""The oldest log generation in which rows lie that the index refers to."""

NEXT_FILE_KEY = b"file"
"""Sealed files of this and higher numbers are being made, and count for nothing."""

GROUP_PREFIX = b"group"
FACT_PREFIX = b"fact"
DROPPED_PREFIX = b"dropped"
"""Numbers under which the index still holds what nobody wants: shards that ended, copies that a
resync has replaced, and those that one has begun and not ended."""

COPY_PREFIX = b"copy"
"""Numbers of the copies that resyncs have made → their shards."""

FIRST_COPY = 1 << 62
"""The first number that a resync gives to a copy; no shard has it."""


def group_key(group: int) -> bytes:
    return GROUP_PREFIX + group.to_bytes(4, "big")


def fact_key(group: int) -> bytes:
    return FACT_PREFIX + group.to_bytes(4, "big")


def dropped_key(number: int) -> bytes:
    return DROPPED_PREFIX + _NUMBER.pack(number)


def copy_key(number: int) -> bytes:
    return COPY_PREFIX + _NUMBER.pack(number)


def prefixed(cells: Iterable[tuple[bytes, bytes]], prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Those whose keys begin with `prefix`, without it."""
    for key, value in cells:
        if key.startswith(prefix):
            yield key[len(prefix) :], value
