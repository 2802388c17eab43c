"""The bytes of the index: keys and values of every kind, as docs/formats/index.md shows them.

A test that fails here says that a format has changed: then it needs a page in docs/adr, and a way
to read the old one. `index-1.txt` is not written anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from pyroaring import BitMap

from millrace.core.cells import Kind
from millrace.core.state.fold import Interval, ShardMeta
from millrace.node import LOCAL, LOCAL_FACT, NODE, NODE_FACT
from millrace.store import chunk
from millrace.store.checkpoint import GROUP, MARK
from millrace.store.index_codec import (
    FIRST_COPY,
    MARK_KEY,
    NEEDED_KEY,
    NEXT_FILE_KEY,
    FileFacts,
    StoredShard,
    block_key,
    copy_key,
    deaths_key,
    decode_file,
    decode_shard,
    dropped_key,
    encode_file,
    encode_shard,
    extent_key,
    fact_key,
    group_key,
    joined,
    number_bytes,
    number_of,
    parts,
    stage_key,
    stage_of,
)
from millrace.store.row_location import RowLocation, decode_location, encode_location
from millrace.wal.record import LogMark

GOLDEN = Path(__file__).with_name("index-1.txt")

META = ShardMeta(
    index=7,
    last_seq=300,
    time_ms=1_700_000_000_000,
    history=b"0123456789abcdef",
    keyed=True,
    published=300,
    died=(0, 1, 2, 3, 4, 5, 6),
    intervals=(Interval(0, 10), Interval(5, 0)),
    weight=77,
)
SHARD = StoredShard(META, 9, 8, (0, 5), {0: (2, 3)}, 5, FIRST_COPY)
FILE = FileFacts(4_096, 100, 7, dropping=True, spans={3: (1, 100)})
IN_LOG = RowLocation(
    home=6,
    offset=4_160,
    length=512,
    count=2,
    span=2,
    time_ms=1_700_000_000_000,
    last_ms=1_700_000_000_000,
    flags=3,
)
IN_FILE = RowLocation(
    sealed=True,
    flags=1,
    count=2,
    home=4,
    offset=1_024,
    length=640,
    time_ms=1_700_000_000_000,
    span=5,
    last_ms=1_700_000_000_009,
    number=3,
    crc=0xDEADBEEF,
)
SPARSE = BitMap([0, 7, 8_191])
DENSE = BitMap(range(0, 8_192, 2))


def lines() -> Iterator[tuple[str, bytes, bytes]]:
    """(Table, key, value) of one entry of each kind."""
    yield "NODE", MARK_KEY, MARK.pack(*LogMark(6, 8_192, 0xABCD, 17))
    yield "NODE", NEEDED_KEY, number_bytes(5)
    yield "NODE", NEXT_FILE_KEY, number_bytes(12)
    yield "NODE", group_key(LOCAL), GROUP.pack(41, 3)
    for group, fact in (
        (LOCAL, LOCAL_FACT.pack(3, META.history)),
        (NODE, NODE_FACT.pack(1_234_567, 1_700_000_000_000_000_000)),
    ):
        for key, value in parts(fact_key(group), fact):
            yield "NODE", key, value
    yield "NODE", dropped_key(3), b""
    yield "NODE", copy_key(FIRST_COPY), number_bytes(3)
    for key, value in parts(number_bytes(3), encode_shard(SHARD)):
        yield "META", key, value
    for key, value in parts(number_bytes(3) + bytes([Kind.CURSOR]) + b"name", bytes(2_000)):
        yield "CELLS", key, value
    yield "KEYS", number_bytes(3) + b"order-17", number_bytes(18)
    yield "BLOCKS", block_key(3, 18), encode_location(IN_LOG)
    yield "BLOCKS", block_key(3, 20), encode_location(IN_FILE)
    yield "BLOCKS", stage_key(3, "later", 7 << 16 | 1), encode_location(IN_LOG)
    yield "BLOCKS", extent_key(6, block_key(3, 18), sealed=False), block_key(3, 19)
    yield "BLOCKS", extent_key(4, block_key(3, 20), sealed=True), block_key(3, 20)
    yield "DEATHS", deaths_key(3, 5, 0, 1), chunk.pack(SPARSE)
    yield "DEATHS", deaths_key(3, 0, 1, 2), chunk.pack(DENSE)
    yield "FILES", number_bytes(4), encode_file(FILE)


def text() -> str:
    head = "# Format 1 of the index, one entry of each kind: table, key, value before its stamp.\n"
    return head + "".join(
        f"{table} {key.hex()} {value.hex() or '-'}\n" for table, key, value in lines()
    )


@pytest.fixture
def golden() -> dict[str, dict[bytes, bytes]]:
    found: dict[str, dict[bytes, bytes]] = {}
    for line in GOLDEN.read_text(encoding="utf-8").splitlines()[1:]:
        table, key, value = line.split()
        content = b"" if value == "-" else bytes.fromhex(value)
        found.setdefault(table, {})[bytes.fromhex(key)] = content
    return found


def test_the_bytes_are_those_of_the_golden_file() -> None:
    assert text() == GOLDEN.read_text(encoding="utf-8")


def test_a_shard_of_an_older_version_is_shorter() -> None:
    """Nobody weighed rows then."""
    written = (
        "979807cd012ccf0000018bcfe56800c41030313233343536373839616263646566c3cd012c97000102"
        "030405069292000a9205000908920005810092020305cf4000000000000000"
    )
    older = msgspec.structs.replace(SHARD, meta=msgspec.structs.replace(META, weight=0))
    assert decode_shard(bytes.fromhex(written)) == older


def test_the_golden_file_is_read(golden: dict[str, dict[bytes, bytes]]) -> None:
    [shard] = joined(golden["META"].items()).values()
    assert decode_shard(shard) == SHARD
    [cell] = joined(golden["CELLS"].items()).values()
    assert cell == bytes(2_000)
    assert len(golden["CELLS"]) == 2
    assert decode_file(golden["FILES"][number_bytes(4)]) == FILE
    blocks = golden["BLOCKS"]
    assert decode_location(blocks[block_key(3, 18)]) == IN_LOG
    assert decode_location(blocks[block_key(3, 20)]) == IN_FILE
    assert [stage for key in blocks if (stage := stage_of(key)) and stage[1] == "later"] == [
        (3, "later", 7 << 16 | 1)
    ]
    deaths = [chunk.unpack(value) for value in golden["DEATHS"].values()]
    assert deaths == [SPARSE, DENSE]
    node = golden["NODE"]
    assert LogMark(*MARK.unpack(node[MARK_KEY])) == LogMark(6, 8_192, 0xABCD, 17)
    assert number_of(node[NEEDED_KEY]) == 5


def test_what_later_versions_append_is_not_missed() -> None:
    """An older folder's structures are shorter: what they lack has its default."""
    shorter = encode_shard(SHARD)
    assert decode_shard(b"\x96" + shorter[1:-9]) == StoredShard(META, 9, 8, (0, 5), {0: (2, 3)}, 5)


if __name__ == "__main__":
    GOLDEN.write_text(text(), encoding="utf-8")
