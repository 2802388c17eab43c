"""The API over a line: what holds of an engine in the same process holds of one in another."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest

from millrace.client.line_socket import SocketLine
from millrace.client.millrace import Millrace, engine_of
from millrace.client.remote import RemoteEngine
from millrace.server.local import Local
from tests.client import (
    harness,
    test_attempt,
    test_cancel,
    test_cursor,
    test_dedup,
    test_delay,
    test_failures,
    test_grant,
    test_lease,
    test_length,
    test_orders,
    test_partitions,
    test_publisher,
    test_queue,
    test_redrive,
    test_refusals,
    test_replace,
    test_rewind,
    test_session,
    test_shards,
    test_topic,
    test_transaction,
    test_ttl,
    test_work,
    test_worker,
)

MODULES = (
    test_attempt,
    test_cancel,
    test_cursor,
    test_dedup,
    test_delay,
    test_failures,
    test_grant,
    test_lease,
    test_length,
    test_orders,
    test_partitions,
    test_publisher,
    test_queue,
    test_redrive,
    test_refusals,
    test_replace,
    test_rewind,
    test_session,
    test_shards,
    test_topic,
    test_transaction,
    test_ttl,
    test_work,
    test_worker,
)


def those_of(module: ModuleType) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """The tests of a module that need nothing but a folder."""
    for name, test in vars(module).items():
        if not name.startswith("test_") or not inspect.isfunction(test):
            continue
        if test.__module__ == module.__name__ and [*inspect.signature(test).parameters] == [
            "tmp_path"
        ]:
            yield name, test


FOUND = [
    pytest.param(test, id=f"{module.__name__.rpartition('.')[2]}-{name}")
    for module in MODULES
    for name, test in those_of(module)
]


@asynccontextmanager
async def by_socket(m: Millrace, path: Path) -> AsyncIterator[Millrace]:
    local = Local(engine_of(m), path)
    await local.start()
    engine = RemoteEngine()
    engine.use(SocketLine(path, engine.late))
    try:
        async with Millrace(engine) as other:
            yield other
    finally:
        await local.stop()


@pytest.mark.parametrize("test", FOUND)
def test_over_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(harness, "WAYS", [by_socket])
    test(tmp_path)
