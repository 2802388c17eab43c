"""Carries priority, delay and TTL through a topic, as headers of the row.

A topic has one order and keeps rows until they are forwarded, so that none of them has a meaning
there. They stay with the message as headers, and the queue that it is forwarded to treats it as if
it had been published there with them, at the time when it was published to the topic.

The seq of a row in its topic, which differs from its seq in each queue, is forwarded with it if the
publisher left room for it: in a header `millrace-topic-seq` of twenty zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.core import bounds
from millrace.core.commands import Publish, RowSchedule, RowTtl
from millrace.core.format.block import Block
from millrace.core.format.column import Column
from millrace.core.model import Headers, NewMessage

PRIORITY = "millrace-priority"
DELAY = "millrace-delay-ms"
TTL = "millrace-ttl-ms"
_NAMES = (PRIORITY, DELAY, TTL)
TOPIC_SEQ = "millrace-topic-seq"
SEQ_ROOM = b"0" * 20
"""The value of that header when published: one zero for each digit of the seq."""

Turns = tuple[tuple[RowSchedule, ...], tuple[RowTtl, ...]]
"""Priorities and delays, and TTLs, of rows."""


def pack(command: Publish) -> Publish:
    """Return the publish for a topic: priority, delay and TTL replaced by headers."""
    if not command.aside and not command.lives:
        return command
    added: dict[int, Headers] = {}
    for run in command.aside:
        pairs: Headers = ()
        if run.priority != limits.PRIORITY_DEFAULT:
            pairs += ((PRIORITY, str(run.priority).encode()),)
        if run.delay_ms is not None:
            pairs += ((DELAY, str(run.delay_ms).encode()),)
        for at in range(run.at, run.at + run.count):
            added[at] = pairs
    for life in command.lives:
        for at in range(life.at, life.at + life.count):
            added[at] = (*added.get(at, ()), (TTL, str(life.ttl_ms).encode()))
    rows = command.rows
    if isinstance(rows, Block):
        given = [
            NewMessage(row.body, row.key, row.headers) for row in rows.rows(0, rows.count, 0, 0)
        ]
    else:
        given = list(rows)
    carried = [
        NewMessage(message.body, message.key, message.headers + added.get(at, ()))
        for at, message in enumerate(given)
    ]
    return msgspec.structs.replace(command, rows=Block.of_messages(carried), aside=(), lives=())


def unpack(block: Block, times: Sequence[tuple[int, int]], now: int) -> Turns:
    """Return the delays, priorities and TTLs of forwarded rows in their queue.

    `times`: (number of rows, publish time) of consecutive rows. Delays and TTLs count from there,
    and not from the time of forwarding.
    """
    if block.header_names is None:
        return (), ()
    names = bytes(block.header_names.data)
    if not any(name.encode() in names for name in _NAMES):
        return (), ()
    published = [time_ms for count, time_ms in times for _ in range(count)]
    runs: list[RowSchedule] = []
    lives: list[RowTtl] = []
    for at, time_ms in enumerate(published):
        headers = dict(block.headers_of(at))
        priority = _number(headers.get(PRIORITY), limits.PRIORITY_MAX)
        delay = _number(headers.get(DELAY), limits.DELAY_MS_MAX)
        ttl = _number(headers.get(TTL), bounds.TTL_MS_MAX)
        if priority is not None or delay is not None:
            rank = limits.PRIORITY_DEFAULT if priority is None else priority
            left = None if delay is None else max(0, time_ms + delay - now)
            count = runs[-1].count if runs else 0
            if runs and runs[-1] == RowSchedule(at - count, count, rank, left):
                runs[-1] = RowSchedule(at - count, count + 1, rank, left)
            else:
                runs.append(RowSchedule(at, 1, rank, left))
        if ttl is not None:
            # A message that has already expired expires in the queue, and is counted there.
            lives.append(RowTtl(at, 1, max(1, time_ms + ttl - now)))
    return tuple(runs), tuple(lives)


def number(block: Block, after: int) -> Block:
    """Return the rows of a topic after this seq, with their seqs written into headers with room
    for them."""
    names, values, lists = block.header_names, block.header_values, block.header_lists
    if names is None or values is None or lists is None:
        return block
    wanted = TOPIC_SEQ.encode()
    if wanted not in bytes(names.data):
        return block
    bounds, data = values.bounds(), bytearray(values.data)
    starts = np.frombuffer(lists, np.int32)
    # There may be 64 headers of each of 10,000 rows: all names are compared at once.
    is_named = pc.equal(names.array(pa.binary(), len(names.offsets) // 4 - 1), pa.scalar(wanted))
    positions = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
    # A row without headers begins where the next row does.
    rows = np.searchsorted(starts, positions, side="right") - 1
    places = zip(
        bounds[positions].tolist(), bounds[positions + 1].tolist(), rows.tolist(), strict=True
    )
    for begin, end, row in places:
        if data[begin:end] == SEQ_ROOM:
            data[begin:end] = b"%020d" % (after + 1 + row)
    filled = Column(values.offsets, bytes(data), values.validity)
    return Block(block.count, block.bodies, block.keys, lists, names, filled)


def _number(value: bytes | None, limit: int) -> int | None:
    """Return the number in a header, or None if it is not such a number: then it is a usual
    header."""
    if value is None or not value.isdigit() or len(value) > len(str(limit)):
        return None
    return int(value) if int(value) <= limit else None
