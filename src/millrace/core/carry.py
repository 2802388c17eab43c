"""Priority, delay and time to live on their way through a topic: headers of the row.

A topic has one order and keeps what is not forwarded, so that none of them means anything there.
They stay with the message as headers, and the queue that it is forwarded to treats it as if it had
been published there with them, at the time when it came to the topic.

The seq of a row in its topic, which has another one in each queue, goes with it where the publisher
left room for it: in a header `millrace-topic-seq` of twenty zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace import limits
from millrace.core import bounds
from millrace.core.block import Block
from millrace.core.column import Column
from millrace.core.commands import Aside, Publish
from millrace.core.leased_commands import Life
from millrace.core.model import Headers, Message

PRIORITY = "millrace-priority"
DELAY = "millrace-delay-ms"
TTL = "millrace-ttl-ms"
_NAMES = (PRIORITY, DELAY, TTL)
TOPIC_SEQ = "millrace-topic-seq"
SEQ_ROOM = b"0" * 20
"""The value of that header as it is published: each digit stands for one of the seq."""

Turns = tuple[tuple[Aside, ...], tuple[Life, ...]]
"""Rows that do not wait in their order, and rows that expire."""


def pack(command: Publish) -> Publish:
    """What a queue would be asked, as a topic is: with headers instead."""
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
        given = [Message(row.body, row.key, row.headers) for row in rows.rows(0, rows.count, 0, 0)]
    else:
        given = list(rows)
    carried = [
        Message(message.body, message.key, message.headers + added.get(at, ()))
        for at, message in enumerate(given)
    ]
    return msgspec.structs.replace(command, rows=Block.of_messages(carried), aside=(), lives=())


def unpack(block: Block, times: Sequence[tuple[int, int]], now: int) -> Turns:
    """How the rows wait in a queue, and when they expire.

    `times`: of so many rows each, when they were published. Delays and times to live count from
    there, and not from when they were forwarded.
    """
    if block.header_names is None:
        return (), ()
    names = bytes(block.header_names.data)
    if not any(name.encode() in names for name in _NAMES):
        return (), ()
    published = [time_ms for count, time_ms in times for _ in range(count)]
    runs: list[Aside] = []
    lives: list[Life] = []
    for at, time_ms in enumerate(published):
        found = dict(block.headers_of(at))
        priority = _number(found.get(PRIORITY), limits.PRIORITY_MAX)
        delay = _number(found.get(DELAY), limits.DELAY_MS_MAX)
        ttl = _number(found.get(TTL), bounds.TTL_MS_MAX)
        if priority is not None or delay is not None:
            rank = limits.PRIORITY_DEFAULT if priority is None else priority
            left = None if delay is None else max(0, time_ms + delay - now)
            count = runs[-1].count if runs else 0
            if runs and runs[-1] == Aside(at - count, count, rank, left):
                runs[-1] = Aside(at - count, count + 1, rank, left)
            else:
                runs.append(Aside(at, 1, rank, left))
        if ttl is not None:
            # One whose time is over expires in the queue, and is counted there.
            lives.append(Life(at, 1, max(1, time_ms + ttl - now)))
    return tuple(runs), tuple(lives)


def number(block: Block, after: int) -> Block:
    """Return the rows of a topic that come after this seq, with their seqs where there is room for
    them; all else is as it was."""
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
    found = np.flatnonzero(is_named.to_numpy(zero_copy_only=False))
    # A row without headers begins where the next one does.
    rows = np.searchsorted(starts, found, side="right") - 1
    places = zip(bounds[found].tolist(), bounds[found + 1].tolist(), rows.tolist(), strict=True)
    for begin, end, row in places:
        if data[begin:end] == SEQ_ROOM:
            data[begin:end] = b"%020d" % (after + 1 + row)
    filled = Column(values.offsets, bytes(data), values.validity)
    return Block(block.count, block.bodies, block.keys, lists, names, filled)


def _number(value: bytes | None, most: int) -> int | None:
    """What the header says; one that says nothing of the kind is a header like any other."""
    if value is None or not value.isdigit() or len(value) > len(str(most)):
        return None
    return int(value) if int(value) <= most else None
