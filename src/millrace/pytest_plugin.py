"""Fixtures for the tests of programs that use Millrace.

pytest finds this module by its entry point, in every run: it imports nothing of the engine before a
test asks for a fixture.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millrace import Millrace, Settings, sync
    from millrace.testing.frozen import FrozenClock
    from millrace.testing.serving import TestServer

    OpenMillrace = Callable[..., AbstractAsyncContextManager[Millrace]]
    """What `millrace_open` is: `async with millrace_open() as m`."""


@pytest.fixture
def millrace_settings() -> Settings:
    """The settings of the engines: small segments, so that they open in a moment.

    A test or a folder of tests whose messages are larger than some hundred KiB has its own.
    """
    from millrace.testing.frozen import SMALL

    return SMALL


@pytest.fixture
def millrace_clock() -> FrozenClock:
    """A clock that stands still: `advance(seconds)` and `set(datetime)` move it.

    In a test that asks for it, it is the clock of the engines as well.
    """
    from millrace.testing.frozen import FrozenClock

    return FrozenClock()


@pytest.fixture(name="millrace")
def _millrace(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    millrace_settings: Settings,
) -> Iterator[sync.Millrace]:
    """An empty Millrace for this test alone, with blocking calls: the real engine on a real disk.

    Its folder is removed after the test.
    """
    from millrace.testing.frozen import open_blocking

    with _folder(tmp_path_factory) as folder:
        m = open_blocking(folder, settings=millrace_settings, clock=_clock(request))
        try:
            yield m
        finally:
            m.close()


@pytest.fixture
def millrace_open(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    millrace_settings: Settings,
) -> Iterator[OpenMillrace]:
    """Opens a Millrace on the event loop of the test: `async with millrace_open() as m`.

    Opening it again in the same test finds what was there; `millrace_open("other")` is another
    folder. The folders are removed after the test.
    """
    from millrace.testing.frozen import open_millrace

    with _folder(tmp_path_factory) as base:

        @asynccontextmanager
        async def opened(name: str = "data") -> AsyncIterator[Millrace]:
            m = await open_millrace(base / name, settings=millrace_settings, clock=_clock(request))
            async with m:
                yield m

        yield opened


@pytest.fixture
def millrace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """A server for this test alone, at a port of its own: `millrace_server.url`.

    It speaks everything that `millrace serve` does; `boto3.client("sqs", **millrace_server.aws)`
    is a client of its queues. Programs of this machine need no token.
    """
    from millrace.testing.serving import TestServer

    with _folder(tmp_path_factory) as folder:
        server = TestServer(folder / "data")
        try:
            yield server
        finally:
            server.close()


@contextmanager
def _folder(factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = factory.mktemp("millrace")
    try:
        yield folder
    finally:
        # pytest would keep the folders of three runs, and each is some 35 MiB.
        shutil.rmtree(folder)


def _clock(request: pytest.FixtureRequest) -> FrozenClock | None:
    if "millrace_clock" not in request.fixturenames:
        return None
    clock: FrozenClock = request.getfixturevalue("millrace_clock")
    return clock
