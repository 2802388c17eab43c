"""Blocks: every way to build one, its bytes, and its Arrow form."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.format.block import (
    HEADER,
    SCHEMA,
    Block,
    DamagedBlock,
    HeaderColumns,
    key_list,
)
from millrace.core.format.column import Column
from millrace.core.model import Headers, NewMessage, Row
from millrace.errors import Corrupt, Invalid

TEXT = st.text(max_size=5)
BYTES = st.binary(max_size=20)
PAIRS: Headers = (("a", b"1"), ("b", b"2"))
MESSAGES = st.lists(
    st.builds(
        NewMessage,
        st.none() | BYTES,
        st.none() | BYTES,
        st.lists(st.tuples(TEXT, BYTES), max_size=3).map(tuple),
    ),
    max_size=20,
)


def encoded(block: Block) -> bytes:
    return b"".join(block.encode())


def through_bytes(block: Block) -> Block:
    data = encoded(block)
    assert len(data) == block.size()
    assert len(data) % 8 == 0
    read, used = Block.decode(memoryview(data + b"more"))
    assert used == len(data)
    return read


def rows_of(block: Block) -> list[Row]:
    return block.rows(0, block.count, 1, 5)


def expected(messages: list[NewMessage]) -> list[Row]:
    return [Row(seq, 5, m.body, m.key, m.headers) for seq, m in enumerate(messages, 1)]


# --- Building ------------------------------------------------------------------------------------


@pytest.mark.slow
@given(MESSAGES)
def test_messages_come_out_as_they_went_in(messages: list[NewMessage]) -> None:
    block = Block.of_messages(messages)
    for one in (block, through_bytes(block), through_bytes(through_bytes(block))):
        assert one.count == len(messages)
        assert rows_of(one) == expected(messages)
        assert one.key_list() == [m.key for m in messages]
        assert one.deletes() == [at for at, m in enumerate(messages) if m.body is None]
        assert [one.headers_of(at) for at in range(one.count)] == [m.headers for m in messages]
    assert key_list(messages) == key_list(block)


@given(st.lists(BYTES, max_size=30))
def test_bodies_alone(bodies: list[bytes]) -> None:
    block = through_bytes(Block.of_bodies(bodies))
    assert [row.body for row in rows_of(block)] == bodies
    assert block.keys is None
    assert block.header_lists is None


@given(MESSAGES, st.data())
def test_a_part_of_the_rows(messages: list[NewMessage], data: st.DataObject) -> None:
    block = Block.of_messages(messages)
    low = data.draw(st.integers(0, len(messages)))
    high = data.draw(st.integers(low, len(messages)))
    assert block.rows(low, high, 1, 5) == expected(messages)[low:high]
    alone = [block.row(at, 1 + at, 5) for at in range(low, high)]
    assert alone == expected(messages)[low:high]


@given(st.lists(st.sampled_from([(), PAIRS, PAIRS[:1], (*PAIRS, *PAIRS)]), max_size=20), st.data())
def test_rows_with_the_headers_of_the_one_before(
    headers: list[Headers], data: st.DataObject
) -> None:
    block = Block.of_messages([NewMessage(b"x", None, pairs) for pairs in headers])
    low = data.draw(st.integers(0, len(headers)))
    assert [row.headers for row in block.rows(low, len(headers), 1, 5)] == headers[low:]


def test_an_empty_body_is_no_delete() -> None:
    block = through_bytes(Block.of_messages([NewMessage(b"", b"k"), NewMessage(None, b"k")]))
    assert [row.body for row in rows_of(block)] == [b"", None]


def test_large_values_are_not_cut_from_one_copy() -> None:
    bodies = [bytes([n]) * 100_000 for n in range(5)]
    block = through_bytes(Block.of_bodies(bodies))
    assert block.bodies.values(1, 4) == bodies[1:4]
    assert block.bodies.largest() == 100_000


@pytest.mark.parametrize("name", ["header", "größe", "\N{SNOWMAN}"])
def test_names_of_many_headers_are_cut_at_characters(name: str) -> None:
    headers = tuple((f"{name}-{n}", str(n).encode()) for n in range(5_000))
    block = through_bytes(Block.of_messages([NewMessage(b"", None, headers)] * 3))
    rows = rows_of(block)
    assert [row.headers for row in rows] == [headers] * 3
    assert block.headers_of(1) == headers
    assert rows[0].size() == sum(len(name.encode()) + len(value) for name, value in headers)


def test_nothing_at_all() -> None:
    for block in (Block.of_bodies([]), Block.of_messages([])):
        read = through_bytes(block)
        assert read.count == 0
        assert rows_of(read) == []
        assert read.key_list() == []
        assert read.arrow(1, 1, 5).num_rows == 0
        assert read.bodies.largest() == 0


# --- Arrow ---------------------------------------------------------------------------------------


@given(MESSAGES)
@settings(max_examples=50)
def test_arrow_shows_the_same_rows(messages: list[NewMessage]) -> None:
    batch = through_bytes(Block.of_messages(messages)).arrow(7, 1, 5)
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    for row, message in zip(batch.to_pylist(), messages, strict=True):
        assert (row["shard"], row["key"], row["value"]) == (7, message.key, message.body)
        headers = [(pair["name"], pair["value"]) for pair in row["headers"] or ()]
        assert tuple(headers) == message.headers
        assert row["time"].timestamp() == 0.005
    assert batch.column("seq").to_pylist() == list(range(1, len(messages) + 1))


def test_arrow_lies_over_the_same_bytes() -> None:
    data = encoded(Block.of_bodies([b"abc", b"def"]))
    block, _ = Block.decode(memoryview(data))
    values = block.arrow(1, 1, 5).column("value")
    start = pa.py_buffer(data).address
    buffer = values.buffers()[2]
    assert buffer is not None
    assert start < buffer.address < start + len(data)


@given(MESSAGES)
@settings(max_examples=50)
def test_arrow_in_and_out(messages: list[NewMessage]) -> None:
    batch = Block.of_messages(messages).arrow(7, 1, 5).select(["value", "key", "headers"])
    assert rows_of(through_bytes(Block.of_arrow(batch))) == expected(messages)


@given(MESSAGES, st.data())
@settings(max_examples=50)
def test_a_slice_of_an_arrow_batch(messages: list[NewMessage], data: st.DataObject) -> None:
    """A slice has its bytes in the middle of its parent's: nothing else may come along."""
    batch = Block.of_messages(messages).arrow(7, 1, 5).select(["value", "key", "headers"])
    low = data.draw(st.integers(0, len(messages)))
    high = data.draw(st.integers(low, len(messages)))
    block = Block.of_arrow(batch.slice(low, high - low))
    assert [(row.body, row.key, row.headers) for row in rows_of(through_bytes(block))] == [
        (m.body, m.key, m.headers) for m in messages[low:high]
    ]


def test_a_small_slice_does_not_carry_its_parent() -> None:
    batch = Block.of_bodies([b"x" * 1000] * 1000).arrow(1, 1, 5).select(["value"])
    assert Block.of_arrow(batch.slice(10, 2)).size() < 3_000


def test_arrays_without_buffers() -> None:
    nulls = pa.RecordBatch.from_arrays([pa.nulls(3, pa.binary())], names=["value"])
    assert Block.of_arrow(nulls).deletes() == [0, 1, 2]
    empty = pa.RecordBatch.from_arrays([pa.array([], pa.binary())], names=["value"])
    assert rows_of(through_bytes(Block.of_arrow(empty))) == []


def test_null_headers_are_none() -> None:
    kind = SCHEMA.field("headers").type
    headers = pa.array([None, [], [{"name": "a", "value": b"b"}]], kind)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"x", b"y", b"z"]), headers], names=["value", "headers"]
    )
    block = through_bytes(Block.of_arrow(batch))
    assert [block.headers_of(at) for at in range(3)] == [(), (), (("a", b"b"),)]


@pytest.mark.parametrize(
    "columns",
    [
        {"body": [b"x"]},
        {"value": [b"x"], "extra": [1]},
        {"value": [1]},
        {"value": [b"x"], "key": [1.5]},
        {"value": [b"x"], "headers": [7]},
        {"value": [b"x"], "headers": [[{"name": "a"}]]},
        {"value": [b"x"], "headers": [[{"name": "a", "value": None}]]},
        {"value": [b"x"], "headers": [[{"name": None, "value": b"a"}]]},
        {"value": [b"x"], "headers": [[{"name": b"\xff", "value": b"a"}]]},
        {"value": ["x"]},
        {"value": [None]},
    ],
)
def test_batches_that_are_no_rows(columns: dict[str, list[object]]) -> None:
    with pytest.raises(Invalid):
        Block.of_arrow(pa.RecordBatch.from_pydict(columns))


def _lists(*offsets: int) -> pa.Array[pa.Scalar[pa.DataType]]:
    """Headers whose offsets nobody has looked at, over two pairs."""
    kind = SCHEMA.field("headers").type
    pairs = pa.array([{"name": "a", "value": b"1"}] * 2, kind.value_type)
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1]]
    lists: pa.Array[pa.Scalar[pa.DataType]] = pa.Array.from_buffers(
        kind, len(offsets) - 1, buffers, children=[pairs]
    )
    return lists


@pytest.mark.parametrize("offsets", [(0, -3, 0, 2), (0, 2, 1, 2), (0, 9, 1, 2)])
def test_sec_01_arrays_that_lead_outside_are_refused(offsets: tuple[int, ...]) -> None:
    value = pa.array([b"x", b"y", b"z"])
    batch = pa.record_batch({"value": value, "headers": _lists(*offsets)})
    with pytest.raises(Invalid) as refused:
        Block.of_arrow(batch)
    assert refused.value.field == "headers"
    bodies = pa.Array.from_buffers(
        pa.binary(), 3, [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(b"xy")]
    )
    with pytest.raises(Invalid) as refused:
        Block.of_arrow(pa.record_batch({"value": bodies}))
    assert refused.value.field == "value"


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, -1, 1), (3, -3, 2), (0, 0, -1)])
def test_sec_01_a_block_is_checked_before_anything_follows_its_offsets(
    counts: tuple[int, ...],
) -> None:
    two = pa.array([b"a", b"b"])
    headers = HeaderColumns(np.array(counts), two, two)
    with pytest.raises(Invalid, match="contradict"):
        Block.of_columns(pa.array([b"x", b"y", b"z"]), None, headers)


# --- Bytes ---------------------------------------------------------------------------------------

FULL = Block.of_messages(
    [
        NewMessage(b"body", b"key", (("name", b"value"), ("", b""))),
        NewMessage(None, b"k2"),
        NewMessage(b"", None, (("x", b"y"),)),
    ]
)


def use(block: Block) -> None:
    """Everything that a reader does with a block."""
    assert len(block.key_list()) == block.count
    block.deletes()
    block.arrow(1, 1, 5).validate()
    assert len(block.rows(0, block.count, 1, 5)) == block.count


def test_every_flipped_bit_is_corrupt_or_another_block() -> None:
    data = encoded(FULL)
    for at in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            try:
                block, _ = Block.decode(memoryview(flipped))
            except Corrupt:
                continue
            # A header's name may be no text; the record's checksum keeps such a flip away.
            with suppress(UnicodeDecodeError):
                use(block)


def test_every_truncation_is_corrupt() -> None:
    data = encoded(FULL)
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            Block.decode(memoryview(data[:length]))


@pytest.mark.parametrize(
    ("offsets", "data", "validity"),
    [
        ([0, 3, 2], b"abc", b""),
        ([-1, 0, 1], b"abc", b""),
        ([0, 1, 4], b"abc", b""),
        ([0, 1], b"abc", b""),
        ([0, 1, 2, 3], b"abc", b""),
        ([0, 1, 2], b"abc", b"\x01\x01"),
    ],
)
def test_offsets_that_lead_outside(offsets: list[int], data: bytes, validity: bytes) -> None:
    packed = b"".join(offset.to_bytes(4, "little", signed=True) for offset in offsets)
    block = Block(2, Column(packed, data, validity))
    with pytest.raises(Corrupt):
        Block.decode(memoryview(encoded(block)))


def test_the_header_keeps_the_buffers_aligned() -> None:
    assert HEADER.size % 8 == 0


def test_a_damaged_block_is_written_again_as_it_was() -> None:
    packed = b"".join(offset.to_bytes(4, "little") for offset in (0, 3, 2))
    raw = encoded(Block(2, Column(packed, b"abc")))
    block, used = Block.decode_or_damaged(memoryview(raw + b"more"))
    assert isinstance(block, DamagedBlock)
    assert (block.count, used, block.size()) == (2, len(raw), len(raw))
    assert encoded(block) == raw
    assert (block.key_list(), block.deletes()) == ([None, None], [])
    for read in (
        lambda: block.row(0, 1, 0),
        lambda: block.rows(0, 2, 1, 0),
        lambda: block.arrow(1, 1, 0),
        lambda: block.headers_of(0),
    ):
        with pytest.raises(Corrupt, match="fall"):
            read()


def test_a_block_whose_length_is_unknown_is_no_block() -> None:
    raw = bytearray(encoded(Block.of_bodies([b"a", b"b"])))
    raw[0] = 200
    with pytest.raises(Corrupt):
        Block.decode_or_damaged(memoryview(bytes(raw)))


def test_names_of_headers_are_text() -> None:
    block = Block.of_messages([NewMessage(b"x", None, (("name", b"value"),))])
    assert block.header_names is not None
    block.header_names.data = b"\xff\xfe\xfd\xfc"
    with pytest.raises(Corrupt, match="UTF-8"):
        Block.decode(memoryview(encoded(block)))
