"""Decoding and validation of many messages in one request body, in steps.

Rule 1: no step of the event loop decodes more than `LINES_STEP_BYTES` of JSON into messages, or
makes more than `ROWS_STEP` rows or rows with more than `HEADERS_STEP` headers; other requests are
served between two steps.
Rule 2: messages are counted before objects are made of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence, Sized
from typing import cast

import msgspec
import pyarrow as pa

from millrace import limits
from millrace.client.message import Message, Rows, prepare
from millrace.client.reserved import check_names
from millrace.core.publishing import validate_rows
from millrace.decoding import json_decoder
from millrace.errors import Invalid, TooLarge
from millrace.server.http.response import Buffer
from millrace.server.web.message import MessageIn, message_in
from millrace.server.web.route import decode

_decoder = json_decoder(MessageIn)
_BLANK_SHARE = 2
"""The limit of lines per allowed message: empty lines count too."""


async def messages_in(encoded: Sequence[msgspec.Raw]) -> list[Message]:
    """Decode the messages of a JSON list.

    Raises:
        Invalid: a message is malformed; the field names it.
        TooLarge: there are too many messages.
    """
    validate_rows.check_count(len(encoded))
    found: list[Message] = []
    size = 0
    for at, raw in enumerate(encoded):
        size += len(raw) + _EACH_BYTES
        if size > limits.LINES_STEP_BYTES:
            size = 0
            await asyncio.sleep(0)
        try:
            one = decode(_decoder, raw)
        except Invalid as error:
            raise _at(f"messages[{at}]", error) from error
        try:
            found.append(message_in(one))
        except (Invalid, TooLarge) as error:
            if len(encoded) == 1:
                raise
            raise validate_rows.in_row(at, error) from error
    return found


def _at(place: str, error: Invalid) -> Invalid:
    """Return the error as if the whole body had been decoded at once."""
    if error.message.startswith(f"{error.field}: "):
        return Invalid(f"{place}.{error.message}", field=f"{place}.{error.field}")
    return Invalid(f"{place}: {error.message}", field=place)


_EACH_BYTES = 16
"""The cost of a message beyond its bytes, in bytes: the shortest message has two bytes."""


async def lines_in(body: Buffer) -> list[Message]:
    """Decode the messages of an NDJSON body, one per line.

    Raises:
        Invalid: a line is malformed; the error names it.
        TooLarge: there are too many lines, or one is too long.
    """
    limit = limits.PUBLISH_MESSAGES_MAX
    found: list[Message] = []
    number = 0
    for lines in _steps(body):
        for line in lines:
            number += 1
            if not line.strip():
                continue
            try:
                found.append(message_in(decode(_decoder, line)))
            except (Invalid, TooLarge) as error:
                # Give the field of the line; the error must not blame the whole body.
                field = error.field if isinstance(error, Invalid) else "lines"
                message = f"line {number}: {error.message}"
                raise type(error)(message, field=field, limit=error.limit) from error
        if len(found) > limit or number > limit * _BLANK_SHARE:
            raise TooLarge(
                f"there are more than {limit} lines, or as many empty ones; send fewer at once",
                field="lines",
                limit=limit,
            )
        await asyncio.sleep(0)
    return found


def _steps(body: Buffer) -> Iterator[list[bytes]]:
    """Split a body into lines, `LINES_STEP_BYTES` of it per step."""
    view = memoryview(body)
    rest = b""
    for at in range(0, len(view), limits.LINES_STEP_BYTES):
        lines = (rest + bytes(view[at : at + limits.LINES_STEP_BYTES])).split(b"\n")
        rest = lines.pop()
        if len(rest) > limits.JSON_BYTES_MAX:
            # A line this long is refused when it is decoded, so that the rest of it need not be
            # collected.
            lines, rest = [*lines, rest], b""
        yield lines
    yield [rest]


async def ready(
    rows: Rows,
    priority: int | None = None,
    delay: float | None = None,
    ttl: float | None = None,
) -> Rows:
    """Return rows that can be published in one step; many rows are checked and laid out in a
    thread.

    Raises:
        Invalid, TooLarge: as for `publish_rows`.
    """
    if not isinstance(rows, list) or not _is_long(rows):
        return rows
    return cast("Rows", await asyncio.to_thread(prepare, rows, priority, delay, ttl))


def _is_long(rows: Sequence[Message]) -> bool:
    if len(rows) * limits.HEADERS_MAX <= limits.HEADERS_STEP:
        # The header limit per message bounds the total of this few rows, so that counting is
        # unnecessary.
        return False
    headers = sum([len(cast("Sized", row.headers)) for row in rows])
    return len(rows) > limits.ROWS_STEP or headers > limits.HEADERS_STEP


async def table_ready(
    table: pa.Table, priority: int | None, delay: float | None, ttl: float | None
) -> Rows:
    """Return the rows of an Arrow table, checked and laid out; many rows in a thread.

    Raises:
        Invalid, TooLarge: as for `publish_rows`, or a header has a name that clients may not
            use.
    """
    headers = 0
    if "headers" in table.schema.names:
        headers = table.column("headers").get_total_buffer_size() // _ARROW_HEADER_BYTES
    is_long = table.num_rows > limits.ROWS_STEP or headers > limits.HEADERS_STEP
    if not is_long:
        return cast("Rows", prepare(table, priority, delay, ttl, check_names))
    made = await asyncio.to_thread(prepare, table, priority, delay, ttl, check_names)
    return cast("Rows", made)


_ARROW_HEADER_BYTES = 8
"""The minimum size of a header in Arrow, in bytes: an offset for its name and one for its value."""
