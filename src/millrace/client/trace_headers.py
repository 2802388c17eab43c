"""Adding trace context headers to published messages."""

from __future__ import annotations

import msgspec

from millrace import limits
from millrace.core.commands import Publish
from millrace.core.format.block import Block
from millrace.core.format.column import Column, offsets_of
from millrace.core.model import Headers, NewMessage


def message_count(command: Publish) -> int | None:
    """Return the number of messages; None for a single message."""
    rows = command.rows
    if isinstance(rows, Block):
        return rows.count
    return len(rows) if len(rows) != 1 else None


def with_headers(command: Publish, headers: Headers) -> Publish:
    """Return the command with these headers added to each of its messages.

    A message that has a header of the same name, or no room for them, is left as it is.
    """
    if not headers:
        return command
    rows = command.rows
    if isinstance(rows, Block):
        return msgspec.structs.replace(command, rows=_block(rows, headers))
    return msgspec.structs.replace(command, rows=tuple(_message(row, headers) for row in rows))


def _message(message: NewMessage, headers: Headers) -> NewMessage:
    return msgspec.structs.replace(message, headers=_joined(message.headers, headers))


def _block(block: Block, headers: Headers) -> Block:
    count = block.count
    if block.header_lists is None:
        by_row = [headers] * count
    else:
        by_row = [_joined(block.headers_of(at), headers) for at in range(count)]
    pairs = [pair for pairs_of_row in by_row for pair in pairs_of_row]
    return Block(
        count,
        block.bodies,
        block.keys,
        offsets_of(map(len, by_row), count),
        Column.of([name.encode() for name, _ in pairs]),
        Column.of([value for _, value in pairs]),
    )


def _joined(own: Headers, more: Headers) -> Headers:
    names = {name for name, _ in more}
    if any(name in names for name, _ in own) or len(own) + len(more) > limits.HEADERS_MAX:
        return own
    size = sum(len(name.encode()) + len(value) for name, value in (*own, *more))
    return (*own, *more) if size <= limits.HEADER_BYTES_MAX else own
