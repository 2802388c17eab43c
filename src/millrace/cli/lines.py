"""Lines from a file or a pipe, as they come, while the engine goes on.

Reading happens on a thread of its own: a pipe may be silent for long. It is read past Python's
buffers, so that a program which ends meanwhile does not wait for the next line.
"""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator, Callable
from typing import IO

from millrace import limits
from millrace.cli.bounds import READ_BYTES
from millrace.errors import TooLarge


async def read_lines(source: IO[bytes]) -> AsyncIterator[list[bytes]]:
    """The whole lines that each read brings, without their ends; at last what has no end.

    Raises:
        TooLarge: a line is longer than any body may be.
    """
    read = _reader(source)
    pieces: list[bytes] = []
    while data := await _in_thread(read):
        head, end, tail = data.rpartition(b"\n")
        if end:
            pieces.append(head)
            yield b"".join(pieces).split(b"\n")
            pieces = [tail]
        else:
            pieces.append(tail)
        if sum(map(len, pieces)) > limits.BODY_BYTES_MAX:
            raise TooLarge(
                f"a line has more than {limits.BODY_BYTES_MAX} bytes, which no body may have",
                field="line",
                limit=limits.BODY_BYTES_MAX,
            )
    if last := b"".join(pieces):
        yield [last]


async def begun(chunks: AsyncIterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
    """The same lines, once the first of them have come or it is known that there are none."""
    first = await anext(chunks, None)

    async def all_of_them() -> AsyncIterator[list[bytes]]:
        if first is not None:
            yield first
            async for more in chunks:
                yield more

    return all_of_them()


def _reader(source: IO[bytes]) -> Callable[[], bytes]:
    try:
        number = source.fileno()
    except (io.UnsupportedOperation, AttributeError):
        # Bytes that are in memory already.
        return lambda: source.read(READ_BYTES)
    return lambda: os.read(number, READ_BYTES)


async def _in_thread(read: Callable[[], bytes]) -> bytes:
    """The result of a blocking call, on a thread that nobody waits for at the program's end."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def deliver(data: bytes | OSError) -> None:
        if result.done():
            return
        if isinstance(data, OSError):
            result.set_exception(data)
        else:
            result.set_result(data)

    def work() -> None:
        try:
            data: bytes | OSError = read()
        except OSError as error:
            data = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, data)

    threading.Thread(target=work, name="millrace-lines", daemon=True).start()
    return await result
