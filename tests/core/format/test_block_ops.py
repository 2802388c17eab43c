"""Selection and concatenation of blocks keep the rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.format import block_ops
from millrace.core.format.block import Block
from millrace.core.model import NewMessage
from millrace.errors import Corrupt

HEADERS = st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=3).map(tuple)
MESSAGES = st.lists(
    st.builds(
        NewMessage,
        st.one_of(st.none(), st.binary(max_size=5)),
        st.one_of(st.none(), st.binary(max_size=5)),
        st.one_of(st.just(()), HEADERS),
    ),
    min_size=1,
    max_size=6,
)
BODIES = st.lists(st.binary(max_size=5).map(NewMessage), min_size=1, max_size=6)


def messages(block: Block) -> list[NewMessage]:
    read, _ = Block.decode(memoryview(b"".join(block.encode())))
    rows = read.rows(0, read.count, 1, 0)
    assert rows == block.rows(0, block.count, 1, 0)
    return [NewMessage(row.body, row.key, row.headers) for row in rows]


@given(st.lists(st.one_of(MESSAGES, BODIES), min_size=1, max_size=4))
def test_joined_blocks_have_all_rows(parts: list[list[NewMessage]]) -> None:
    joined = block_ops.join([Block.of_messages(part) for part in parts])
    assert messages(joined) == [message for part in parts for message in part]


@given(st.one_of(MESSAGES, BODIES), st.data())
def test_a_part_of_a_block_has_these_rows(rows: list[NewMessage], data: st.DataObject) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    at = np.flatnonzero(np.array(flags))
    taken = block_ops.take(Block.of_messages(rows), at)
    assert messages(taken) == [row for row, flag in zip(rows, flags, strict=True) if flag]


def test_keys_that_nobody_has_are_left_out() -> None:
    block = Block.of_messages([NewMessage(b"a"), NewMessage(b"b", b"k")])
    assert block_ops.take(block, np.array([0])).keys is None
    joined = block_ops.join([Block.of_bodies([b"a"]), Block.of_bodies([b"b"])])
    assert joined.keys is None
    assert joined.header_names is None


def test_sec_01_rows_that_cannot_be_read_are_corrupt() -> None:
    batch = Block.of_messages([NewMessage(b"abc", b"k"), NewMessage(b"de", b"l")]).arrow(0, 1, 0)
    offsets = pa.py_buffer(np.array([0, 50, 5], np.int32).tobytes())
    broken = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(b"abcde")])
    at = batch.schema.get_field_index("value")
    with pytest.raises(Corrupt, match="column 'value' is damaged"):
        block_ops.of_rows(batch.set_column(at, batch.schema.field(at), broken))
