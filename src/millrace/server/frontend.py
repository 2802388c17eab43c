"""A front end: `python -m millrace.server.frontend`, started by the crew of a server.

It reads its orders from its standard input, says `ready` on its standard output when it listens,
and what it has counted for every line that it reads then. It ends when it is told to, or when the
input ends: then the engine's process is gone. It never opens the folder itself: that would keep the
next engine from it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import msgspec

from millrace.client.joining import join
from millrace.decoding import decode_json
from millrace.errors import MillraceError
from millrace.lazy_pandas import spare_pandas
from millrace.loop import new_loop, rest_collector
from millrace.server import logs
from millrace.server.address import parse_address
from millrace.server.book import Book
from millrace.server.config import Loaded, load
from millrace.server.counted import Counts, encode
from millrace.server.secret import key_secret
from millrace.server.serving import Serving

_logger = logging.getLogger("millrace.server")


class Orders(msgspec.Struct, frozen=True):
    """Where a front end's settings come from, and which one it is."""

    config: str | None = None
    flags: dict[str, str] = {}
    listen: list[str] = []
    """With ports that are known."""
    number: int = 0

    def load(self) -> Loaded:
        """The settings; the environment is that of whoever gave the orders."""
        file = None if self.config is None else Path(self.config)
        return load(file, os.environ, self.flags)


async def run(orders: Orders, pipe: asyncio.StreamReader, parent: int) -> None:
    """Serve until the end, for the engine of the process `parent`."""
    settings = orders.load().settings
    logs.set_up(settings.log_level, settings.log_format)
    loop = asyncio.get_running_loop()
    end, hangup = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    async with AsyncExitStack() as ending:
        # The next engine has front ends of its own, and would refuse what this one alone writes.
        millrace = await join(settings.data, lambda: os.getppid() == parent)
        ending.push_async_callback(millrace.close)
        follower = f"frontend-{orders.number}"
        book = await Book.open(millrace, follower=follower, secret=key_secret(settings.key_path))
        ending.push_async_callback(book.close)
        serving = Serving(settings, millrace, book, frontend=orders.number)
        ending.push_async_callback(serving.stop)
        addresses = [parse_address(text, "listen") for text in orders.listen]
        await serving.start(addresses, is_shared=True)
        rest_collector()
        # Whoever would read it may be gone; then the input has ended, too.
        _write(b"ready\n")
        watch = loop.create_task(_watch(pipe, end, lambda: serving.counted(orders.number)))
        ending.callback(watch.cancel)
        while not end.is_set():
            waits = [loop.create_task(end.wait()), loop.create_task(hangup.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if hangup.is_set():
                hangup.clear()
                try:
                    serving.reload(orders.load().settings)
                except MillraceError as error:
                    _logger.error("not reloaded: %s", error)


async def _watch(
    pipe: asyncio.StreamReader, end: asyncio.Event, count: Callable[[], Counts]
) -> None:
    """Say what was counted whenever a line asks for it; the end of the input is the end."""
    while await pipe.readline():
        line = encode(count()).encode() + b"\n"
        # Not on the loop: it may be longer than a pipe holds at once.
        await asyncio.to_thread(_write, line)
    end.set()


def _write(line: bytes) -> None:
    """Say something to the engine's process, unless that is gone."""
    with suppress(BrokenPipeError):
        while line:
            line = line[os.write(sys.stdout.fileno(), line) :]


async def main() -> None:
    """Read the orders, and follow them."""
    parent = os.getppid()
    loop = asyncio.get_running_loop()
    pipe = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(pipe), sys.stdin)
    orders = await pipe.readline()
    if not orders:
        return
    try:
        await run(decode_json(orders, Orders), pipe, parent)
    except MillraceError as error:
        sys.exit(f"front end: {error}")


if __name__ == "__main__":
    spare_pandas()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
