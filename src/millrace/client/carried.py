"""Messages that carry headers of the client's own: the trace that they are part of."""

from __future__ import annotations

import msgspec

from millrace import limits
from millrace.core.block import Block
from millrace.core.column import Column, offsets_of
from millrace.core.commands import Publish
from millrace.core.model import Headers, Message


def count_of(command: Publish) -> int | None:
    """How many messages it has; None of a single one that was published as such."""
    rows = command.rows
    if isinstance(rows, Block):
        return rows.count
    return len(rows) if len(rows) != 1 else None


def carrying(command: Publish, headers: Headers) -> Publish:
    """The command, each of whose messages has these headers besides.

    One that has a header of such a name keeps its own, and one that has no room for them goes
    without.
    """
    if not headers:
        return command
    rows = command.rows
    if isinstance(rows, Block):
        return msgspec.structs.replace(command, rows=_block(rows, headers))
    return msgspec.structs.replace(command, rows=tuple(_message(row, headers) for row in rows))


def _message(message: Message, headers: Headers) -> Message:
    return msgspec.structs.replace(message, headers=_joined(message.headers, headers))


def _block(block: Block, headers: Headers) -> Block:
    count = block.count
    if block.header_lists is None:
        each = [headers] * count
    else:
        each = [_joined(block.headers_of(at), headers) for at in range(count)]
    pairs = [pair for one in each for pair in one]
    return Block(
        count,
        block.bodies,
        block.keys,
        offsets_of(map(len, each), count),
        Column.of([name.encode() for name, _ in pairs]),
        Column.of([value for _, value in pairs]),
    )


def _joined(own: Headers, more: Headers) -> Headers:
    names = {name for name, _ in more}
    if any(name in names for name, _ in own) or len(own) + len(more) > limits.HEADERS_MAX:
        return own
    size = sum(len(name.encode()) + len(value) for name, value in (*own, *more))
    return (*own, *more) if size <= limits.HEADER_BYTES_MAX else own
