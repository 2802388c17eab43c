"""pytest fixtures for programs that use Millrace.

pytest loads this module by its entry point in every run: it imports nothing of the engine before a
test requests a fixture.
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
    from millrace.testing.frozen_clock import FrozenClock
    from millrace.testing.server import TestServer

    OpenMillrace = Callable[..., AbstractAsyncContextManager[Millrace]]
    """Type of `millrace_open`: `async with millrace_open() as m`."""


@pytest.fixture
def millrace_settings() -> Settings:
    """Settings of the engines: small segments, so that opening is fast.

    Override it for tests whose messages are larger than some hundred KiB.
    """
    from millrace.testing.frozen_clock import SMALL

    return SMALL


@pytest.fixture
def millrace_clock() -> FrozenClock:
    """A frozen clock, which `advance(seconds)` and `set(datetime)` move.

    If a test requests it, its engines use it as well.
    """
    from millrace.testing.frozen_clock import FrozenClock

    return FrozenClock()


@pytest.fixture(name="millrace")
def _millrace(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    millrace_settings: Settings,
) -> Iterator[sync.Millrace]:
    """An empty Millrace with blocking calls for one test: the real engine on a real disk.

    Its folder is removed after the test.
    """
    from millrace.testing.frozen_clock import open_blocking

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
    """Open a Millrace on the event loop of the test: `async with millrace_open() as m`.

    Opening it again in the same test finds the same data; `millrace_open("other")` is another
    folder. The folders are removed after the test.
    """
    from millrace.testing.frozen_clock import open_millrace

    with _folder(tmp_path_factory) as base:

        @asynccontextmanager
        async def opened(name: str = "data") -> AsyncIterator[Millrace]:
            m = await open_millrace(base / name, settings=millrace_settings, clock=_clock(request))
            async with m:
                yield m

        yield opened


@pytest.fixture
def millrace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """A server for one test, at a port of its own: `millrace_server.url`.

    It serves everything that `millrace serve` does; `boto3.client("sqs", **millrace_server.aws)` is
    a client of its queues. Local programs need no token.
    """
    from millrace.testing.server import TestServer

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
        # pytest would keep the folders of three runs, each about 35 MiB.
        shutil.rmtree(folder)


def _clock(request: pytest.FixtureRequest) -> FrozenClock | None:
    if "millrace_clock" not in request.fixturenames:
        return None
    clock: FrozenClock = request.getfixturevalue("millrace_clock")
    return clock
