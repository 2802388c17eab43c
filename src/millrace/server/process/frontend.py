"""A front-end process: `python -m millrace.server.process.frontend`, started by
`FrontendSupervisor`.

It reads its orders from standard input, writes `ready` to standard output when it listens, and then
its counters for each line that it reads. It exits on a signal, or at the end of the input, which
means that the engine's process is gone. It never opens the folder itself: that would block the next
engine.
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

from millrace.client.shared_folder import join
from millrace.decoding import decode_json
from millrace.errors import MillraceError
from millrace.event_loop import new_loop, rest_collector
from millrace.lazy_pandas import spare_pandas
from millrace.server.auth.secret_file import key_secret
from millrace.server.auth.store import UserStore
from millrace.server.counters import ProcessCounters, encode
from millrace.server.http.listener import parse_address
from millrace.server.process import log_format
from millrace.server.process.http_service import HttpService
from millrace.server.process.server_settings import LoadedSettings, load

_logger = logging.getLogger("millrace.server")


class FrontendOrders(msgspec.Struct, frozen=True):
    """Source of a front end's settings, and its number."""

    config: str | None = None
    flags: dict[str, str] = {}
    listen: list[str] = []
    """With the actual ports."""
    number: int = 0

    def load(self) -> LoadedSettings:
        """Load the settings; the environment is inherited from the server."""
        file = None if self.config is None else Path(self.config)
        return load(file, os.environ, self.flags)


async def run(orders: FrontendOrders, pipe: asyncio.StreamReader, parent: int) -> None:
    """Serve until shutdown, for the engine of the process `parent`."""
    settings = orders.load().settings
    log_format.set_up(settings.log_level, settings.log_format)
    loop = asyncio.get_running_loop()
    end, hangup = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    async with AsyncExitStack() as ending:
        # The next engine has its own front ends, and would refuse what only this one may write.
        millrace = await join(settings.data, lambda: os.getppid() == parent)
        ending.push_async_callback(millrace.close)
        follower = f"frontend-{orders.number}"
        book = await UserStore.open(
            millrace, follower=follower, secret=key_secret(settings.key_path)
        )
        ending.push_async_callback(book.close)
        serving = HttpService(settings, millrace, book, frontend=orders.number)
        ending.push_async_callback(serving.stop)
        addresses = [parse_address(text, "listen") for text in orders.listen]
        await serving.start(addresses, is_shared=True)
        rest_collector()
        # If the reader is gone, the input has ended too.
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
    pipe: asyncio.StreamReader, end: asyncio.Event, count: Callable[[], ProcessCounters]
) -> None:
    """Write the counters for each line read; the end of the input ends the process."""
    while await pipe.readline():
        line = encode(count()).encode() + b"\n"
        # In a thread, because it may exceed the buffer of the pipe and block.
        await asyncio.to_thread(_write, line)
    end.set()


def _write(line: bytes) -> None:
    """Write a line to the engine's process, unless that is gone."""
    with suppress(BrokenPipeError):
        while line:
            line = line[os.write(sys.stdout.fileno(), line) :]


async def main() -> None:
    """Read the orders and serve."""
    parent = os.getppid()
    loop = asyncio.get_running_loop()
    pipe = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(pipe), sys.stdin)
    orders = await pipe.readline()
    if not orders:
        return
    try:
        await run(decode_json(orders, FrontendOrders), pipe, parent)
    except MillraceError as error:
        sys.exit(f"front end: {error}")


if __name__ == "__main__":
    spare_pandas()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
