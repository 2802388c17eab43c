"""Rows that were just published are read as they were written."""

from __future__ import annotations

import pyarrow as pa

from millrace.client.millrace import Millrace
from tests.client.harness import embedded


@embedded
async def test_a_buffer_that_its_owner_changes_later_changes_no_message(m: Millrace) -> None:
    own = bytearray(b"beforebefore")
    offsets = pa.array([0, 6, 12], pa.int32()).buffers()[1]
    bodies = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(own)])
    queue = await m.queue("orders")
    await queue.publish_many(pa.record_batch([bodies], ["value"]))
    own[:] = b"after!after!"
    assert [lease.body for lease in await queue.lease(2)] == [b"before", b"before"]


@embedded
async def test_small_and_large_messages_are_read_whole(m: Millrace) -> None:
    queue = await m.queue("orders")
    await queue.publish(b"small", key="k", headers={"a": "b"})
    await queue.publish(b"l" * 20_000)
    small, large = await queue.lease(2)
    assert (small.body, small.key, dict(small.headers)) == (b"small", b"k", {"a": b"b"})
    assert large.body == b"l" * 20_000
