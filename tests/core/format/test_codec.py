"""Entries and cells: the same after their bytes; any other bytes are `Corrupt` or another entry."""

from __future__ import annotations

import struct
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from millrace.core.cells import (
    CELL_TYPES,
    Cell,
    Kind,
    LeaseCell,
    ProducerCell,
    Slice,
)
from millrace.core.changes import Batch, Changes, Entry, EntryKind
from millrace.core.format.block import Block
from millrace.core.format.codec import (
    BATCH,
    ENTRY,
    decode_cell,
    decode_entries,
    encode_cell,
    encode_entry,
)
from millrace.core.format.column import offsets_of
from millrace.core.format.seq_sets import pack_seqs, unpack_seqs
from millrace.core.model import (
    CursorPosition,
    Epoch,
    GroupId,
    History,
    Index,
    Millis,
    NewMessage,
    ShardId,
)
from millrace.core.spec import QueueSpec
from millrace.errors import Corrupt

NUMBERS = st.integers(0, 2**63)
SMALL = st.integers(0, 10)
CHANGES = st.builds(
    Changes,
    staged=st.lists(st.tuples(st.text(max_size=3), SMALL), max_size=2),
    published=st.lists(st.tuples(st.text(max_size=3), NUMBERS, SMALL), max_size=2),
    unstaged=st.lists(st.text(max_size=3), max_size=2),
    died=st.dictionaries(st.integers(1, 6), st.binary(max_size=9), max_size=3),
    settled=st.binary(max_size=9),
    passed=NUMBERS,
    purged=NUMBERS,
    unpinned=st.lists(NUMBERS, max_size=2),
    pinned=st.lists(NUMBERS, max_size=2),
    cells=st.lists(
        st.tuples(st.integers(1, 11), st.binary(max_size=9), st.none() | st.binary(max_size=9)),
        max_size=3,
    ),
    made=st.sampled_from([0, 1, 3]),
    dropped=st.booleans(),
)
BLOCKS = st.lists(
    st.lists(
        st.builds(NewMessage, st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9)),
        max_size=3,
    ).map(Block.of_messages),
    max_size=3,
)


def make_batch(shard: int, index: int, time: int, changes: Changes, blocks: list[Block]) -> Batch:
    changes.firsts = list(range(1, len(blocks) + 1))
    return Batch(ShardId(shard), Index(index), Millis(time), changes, blocks)


BATCHES = st.builds(make_batch, NUMBERS, NUMBERS, st.integers(0, 2**62), CHANGES, BLOCKS)
ENTRIES = st.builds(
    lambda group, epoch, index, history, batches: Entry(
        GroupId(group), Epoch(epoch), Index(index), History(history), batches
    ),
    st.integers(0, 2**32 - 1),
    NUMBERS,
    NUMBERS,
    st.binary(min_size=16, max_size=16),
    st.lists(BATCHES, max_size=3),
)


def join(entry: Entry, base: int = 0) -> bytes:
    return b"".join(encode_entry(entry, base))


def said(entry: Entry) -> object:
    """All that an entry says."""
    return (
        entry.group,
        entry.epoch,
        entry.index,
        entry.history,
        entry.kind,
        entry.fact,
        [
            (
                batch.shard,
                batch.index,
                batch.time_ms,
                batch.changes,
                [block.rows(0, block.count, 1, 5) for block in batch.blocks],
            )
            for batch in entry.batches
        ],
    )


@given(st.lists(ENTRIES, max_size=3))
@settings(max_examples=40)
def test_entries_come_out_as_they_went_in(entries: list[Entry]) -> None:
    payload = b""
    for entry in entries:
        payload += join(entry, len(payload))
    assert len(payload) % 8 == 0
    read = decode_entries(memoryview(payload))
    assert [said(entry) for entry in read] == [said(entry) for entry in entries]
    for before, after in zip(entries, read, strict=True):
        for one, other in zip(before.batches, after.batches, strict=True):
            assert one.places == other.places
            for (at, length), block in zip(one.places, one.blocks, strict=True):
                assert payload[at : at + length] == b"".join(block.encode())
                assert at % 8 == 0


@pytest.mark.parametrize("fact", [b"", b"x", b"12345678", b"term and vote"])
def test_facts_and_marks(fact: bytes) -> None:
    made = [
        Entry(GroupId(1), Epoch(2), Index(3), History(b"h" * 16), [], kind=kind, fact=fact)
        for kind in (EntryKind.FACT,)
    ] + [
        Entry(GroupId(1), Epoch(2), Index(3), History(b"h" * 16), [], kind=kind)
        for kind in (EntryKind.VOID, EntryKind.COMMIT)
    ]
    payload = b"".join(join(entry) for entry in made)
    assert [said(entry) for entry in decode_entries(memoryview(payload))] == [
        said(entry) for entry in made
    ]


def full_entry() -> Entry:
    block = Block.of_messages([NewMessage(b"body", b"key", (("n", b"v"),)), NewMessage(None, b"k")])
    changes = Changes(
        staged=[("s", 1)],
        published=[("t", 5, 2)],
        unstaged=["u"],
        died={1: pack_seqs(BitMap64([1, 2, 9])), 2: pack_seqs(BitMap64([3]))},
        settled=pack_seqs(BitMap64([4])),
        passed=3,
        purged=2,
        unpinned=[1],
        pinned=[2],
        cells=[(int(Kind.LEASE), b"k" * 8, b"value"), (int(Kind.PIN), b"k", None)],
    )
    batch = make_batch(1, 2, 3, changes, [block, Block.of_bodies([b"", b"x"])])
    return Entry(GroupId(1), Epoch(1), Index(7), History(b"h" * 16), [batch, batch])


def test_every_flipped_bit_is_corrupt_or_another_entry() -> None:
    data = join(full_entry())
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            with suppress(Corrupt):
                decode_entries(memoryview(flipped))


def test_every_truncation_is_corrupt() -> None:
    data = join(full_entry())
    for length in range(1, len(data)):
        with pytest.raises(Corrupt):
            decode_entries(memoryview(data[:length]))


@given(st.binary(max_size=300))
@settings(max_examples=100)
def test_noise_is_corrupt(noise: bytes) -> None:
    if noise:
        with pytest.raises(Corrupt):
            decode_entries(memoryview(noise))


def with_changes(changes: bytes) -> bytes:
    """An entry whose one batch has these bytes for its changes."""
    padded = changes + bytes(-len(changes) & 7)
    batch = BATCH.pack(1, 1, 1, 0, len(changes), BATCH.size + len(padded)) + padded
    return ENTRY.pack(1, 1, 1, 1, b"h" * 16, ENTRY.size + len(batch), EntryKind.DATA) + batch


@pytest.mark.parametrize(
    "changes",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x9d\xdd\xff\xff\xff\xff\x01",
        b"\xdc\0\x10" + msgspec.msgpack.encode(Changes())[1:] + b"\x91" * 100_000,
        b"\x9d\x90\x91\x92\xa1\xff\x01",
    ],
    ids=["none", "no type", "long list", "long list within", "deep", "no text"],
)
def test_changes_that_are_none(changes: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_entries(memoryview(with_changes(changes)))


def test_fields_that_a_newer_version_adds_are_passed_over() -> None:
    known = msgspec.msgpack.decode(msgspec.msgpack.encode(Changes(passed=5)))
    newer = msgspec.msgpack.encode([*known, 1])
    [entry] = decode_entries(memoryview(with_changes(newer)))
    assert entry.batches[0].changes == Changes(passed=5)


@pytest.mark.parametrize(
    ("field", "value"), [(1, 2**32 - 1), (5, 0), (5, 2**63), (6, 99), (5, ENTRY.size)]
)
def test_headers_that_lie(field: int, value: int) -> None:
    fields = [1, 1, 1, 1, b"h" * 16, 0, EntryKind.DATA]
    body = with_changes(msgspec.msgpack.encode(Changes()))[ENTRY.size :]
    fields[5] = ENTRY.size + len(body)
    fields[field] = value
    with pytest.raises(Corrupt):
        decode_entries(memoryview(ENTRY.pack(*fields) + body))


def test_a_fact_longer_than_its_entry() -> None:
    head = ENTRY.pack(1, 9, 1, 1, b"h" * 16, ENTRY.size + 8, EntryKind.FACT)
    with pytest.raises(Corrupt):
        decode_entries(memoryview(head + bytes(8) + bytes(64)))


def test_sizes_keep_blocks_aligned() -> None:
    assert ENTRY.size % 8 == 0
    assert BATCH.size % 8 == 0


# --- Cells ---------------------------------------------------------------------------------------


def cells(kind: type[Cell]) -> st.SearchStrategy[Cell]:
    """Cells with any values that their types allow, numbers within 64 bits."""
    of = {
        "int": NUMBERS,
        "bool": st.booleans(),
        "str": st.text(max_size=5),
        "bytes": st.binary(max_size=9),
        "CursorPosition": st.builds(
            CursorPosition, st.binary(max_size=16), NUMBERS, NUMBERS, NUMBERS
        ),
        "Route": st.sampled_from(["key", "group", "spread"]),
        "Order": st.sampled_from(["none", "strict", "group", "fair"]),
        "Delivery": st.sampled_from(["messages", "partitions"]),
        "tuple[Slice, ...]": st.tuples(st.builds(Slice, NUMBERS, st.tuples(NUMBERS, NUMBERS))),
        "Notes": st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=2).map(
            tuple
        ),
        "Overflow": st.sampled_from(["refuse", "drop"]),
        "Blocking": st.sampled_from(["lease", "message"]),
        "Literal['work', 'log']": st.sampled_from(["work", "log"]),
        "Literal['', 'zstd', 'lz4']": st.sampled_from(["", "zstd", "lz4"]),
        "Literal['dense', 'rising', 'range']": st.sampled_from(["dense", "rising", "range"]),
        "tuple[bytes, ...]": st.lists(st.binary(max_size=9), max_size=3).map(tuple),
        "tuple[int, ...]": st.lists(NUMBERS, max_size=3).map(tuple),
        "tuple[int | None, ...]": st.lists(st.none() | NUMBERS, max_size=3).map(tuple),
        "tuple[tuple[int, int, int], ...]": st.lists(
            st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=3
        ).map(tuple),
        "tuple[tuple[int, int, int, int | None], ...]": st.lists(
            st.tuples(NUMBERS, NUMBERS, NUMBERS, st.none() | NUMBERS), max_size=3
        ).map(tuple),
        "dict[int, int]": st.dictionaries(NUMBERS, NUMBERS, max_size=3),
        "dict[int, tuple[int, int]]": st.dictionaries(
            NUMBERS, st.tuples(NUMBERS, NUMBERS), max_size=3
        ),
    }
    return st.builds(kind, *(of[kind.__annotations__[name]] for name in kind.__struct_fields__))


@pytest.mark.parametrize("kind", list(Kind))
def test_cells_come_out_as_they_went_in(kind: Kind) -> None:
    @given(cells(CELL_TYPES[kind]))
    @settings(max_examples=30)
    def check(cell: Cell) -> None:
        assert decode_cell(kind, encode_cell(cell)) == cell

    check()


@given(st.sampled_from(list(Kind)), st.binary(max_size=60))
@settings(max_examples=200)
def test_noise_is_a_cell_or_corrupt(kind: Kind, noise: bytes) -> None:
    with suppress(Corrupt):
        decode_cell(kind, noise)


def test_a_deep_cell_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        decode_cell(Kind.SPEC, b"\x9f" + b"\x91" * 100_000)


def test_text_that_is_none_is_corrupt() -> None:
    """A bit that is turned over in a name makes it no UTF-8."""
    written = encode_cell(QueueSpec(dead_letter="default/dead"))
    with pytest.raises(Corrupt):
        decode_cell(Kind.SPEC, written.replace(b"dead", b"dea\xff"))


def test_a_single_body_beyond_all_bounds_is_counted_as_many_are() -> None:
    with pytest.raises(OverflowError):
        offsets_of([2**31], 1)
    assert offsets_of([2**31 - 1], 1) == np.array([0, 2**31 - 1], np.int32).tobytes()


def test_numbers_are_written_in_order() -> None:
    """The same state gives the same bytes, in whichever order it came about."""
    counts = {5: (1, 1), 3: (2, 0)}
    one = encode_cell(LeaseCell(1, b"", counts=dict(sorted(counts.items()))))
    other = encode_cell(LeaseCell(1, b"", counts={3: (2, 0), 5: (1, 1)}))
    assert one == other


def test_a_full_producer_is_a_small_cell() -> None:
    recent = tuple((2**62 + n, 2**62 + n, 2**16) for n in range(32))
    assert len(encode_cell(ProducerCell("dense", 2**62, 2**42, recent))) < 2_000


# --- Sets of seqs --------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 2**40)), st.sets(st.integers(0, 2**40)))
def test_sets_come_out_as_they_went_in(some: set[int], others: set[int]) -> None:
    packed = pack_seqs(BitMap64(some))
    assert unpack_seqs(packed) == BitMap64(some)
    roundabout = (BitMap64(some) | BitMap64(others)) - (BitMap64(others) - BitMap64(some))
    assert pack_seqs(roundabout) == packed


@given(st.integers(0, 100_000), st.integers(0, 20_000), st.data())
@settings(max_examples=50)
def test_the_same_set_gives_the_same_bytes(low: int, count: int, data: st.DataObject) -> None:
    """Dense and sparse, by ranges or one by one: replicas compare cells by their bytes."""
    step = data.draw(st.sampled_from([1, 2, 7]))
    seqs = range(low, low + count, step)
    grown = BitMap64()
    for seq in seqs:
        grown.add(seq)
    shrunk = BitMap64(range(low, low + count))
    shrunk &= BitMap64(seqs)
    packed = {pack_seqs(BitMap64(list(seqs))), pack_seqs(grown), pack_seqs(shrunk)}
    assert len(packed) == 1


@example([(0, 3)])
@example([(0, 3), (70_000, 3), (140_000, 9)])
@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 5)), max_size=30))
def test_runs_that_are_no_shorter_are_lists_however_they_came_to_be(
    runs: list[tuple[int, int]],
) -> None:
    """Three in a row take as many bytes as a run, or as a list."""
    ranged = BitMap64()
    for low, count in runs:
        ranged.add_range(low, low + count)
    listed = BitMap64(list(ranged))
    assert pack_seqs(ranged) == pack_seqs(listed)
    assert unpack_seqs(pack_seqs(ranged)) == listed


@pytest.mark.parametrize("data", [b"x", b"\xff" * 30, struct.pack("<Q", 5)])
def test_what_is_no_set(data: bytes) -> None:
    with pytest.raises(Corrupt):
        unpack_seqs(data)
