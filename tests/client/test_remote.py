"""The API tests over a socket: a remote engine behaves like an embedded one."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest
from _pytest.mark import ParameterSet

from millrace.client.millrace import Millrace, engine_of
from millrace.client.remote import RemoteEngine
from millrace.rpc.http_transport import HttpTransport
from millrace.rpc.socket_transport import SocketTransport
from millrace.server.rpc.local_socket import LocalListener
from tests.client import (
    harness,
    test_cursor,
    test_lease,
    test_lease_calls_attempt_id,
    test_lease_group,
    test_lease_replace,
    test_publisher,
    test_queue,
    test_queue_cancel,
    test_session,
    test_shards,
    test_topic,
    test_transaction,
    test_work,
    test_worker,
)
from tests.server.calls_site import served

MODULES = (
    test_lease_calls_attempt_id,
    test_queue_cancel,
    test_cursor,
    test_lease_group,
    test_lease,
    test_publisher,
    test_queue,
    test_lease_replace,
    test_session,
    test_shards,
    test_topic,
    test_transaction,
    test_work,
    test_worker,
)

LOOKS_INSIDE = frozenset(
    {
        "test_a_failed_disk_ends_the_worker",
        "test_a_repeat_that_nobody_heard_gives_back_nothing",
        "test_odd_arguments_are_refused",
        "test_r7_a_session_that_is_closed_while_it_is_resumed_ends",
        "test_r7_a_session_that_is_left_while_it_is_resumed_is_suspected",
        "test_r7_a_session_that_is_lost_while_nothing_is_taken_is_suspected_later",
        "test_r7_a_session_that_was_dropped_is_suspected_and_its_messages_return",
        "test_r7_after_a_restart_a_session_is_suspected_then_returned",
        "test_r9_one_that_is_refused_keeps_no_other",
        "test_r9_what_found_no_room_is_sent_again_in_order",
        "test_r9_what_is_unknown_is_sent_again_to_the_next_engine",
        "test_what_is_of_another_millrace_is_refused",
    }
)
"""Tests that ask the engine in the same process what no other process can ask."""

PULLS_ON_THE_LOOP = frozenset(
    {
        "test_a_cursor_has_a_boundary_for_each_shard",
        "test_a_pin_goes_by_age",
        "test_a_pin_that_goes_ends_the_reading",
        "test_a_snapshot_always_shows_the_same_rows",
        "test_a_snapshot_that_nobody_heard_of_is_let_go",
        "test_a_snapshot_that_was_let_go_shows_no_rows",
        "test_arrow_can_be_written_as_it_is",
        "test_arrow_counts_the_shards_of_the_queue",
        "test_arrow_has_every_column",
        "test_everything_is_done_at_once",
    }
)
"""Tests that pull an Arrow reader on the event loop, which then could not fetch what it reads."""

LEFT_OUT = LOOKS_INSIDE | PULLS_ON_THE_LOOP


LONG = frozenset(
    {
        "test_a_killed_worker_loses_nothing_and_doubles_nothing",
        "test_no_more_run_at_a_time_than_was_asked_for",
        "test_r4_large_bodies_are_read_in_parts",
    }
)
"""Tests of much work, which are run over the socket alone."""


def those_of(module: ModuleType) -> Iterator[tuple[str, Callable[..., None]]]:
    """Return the tests of a module that need only a folder."""
    for name, test in vars(module).items():
        if name in LEFT_OUT or not name.startswith("test_") or not inspect.isfunction(test):
            continue
        if test.__module__ == module.__name__ and [*inspect.signature(test).parameters] == [
            "tmp_path"
        ]:
            yield name, test


def listed(
    modules: Iterable[ModuleType], without: frozenset[str] = frozenset()
) -> list[ParameterSet]:
    return [
        pytest.param(test, id=f"{module.__name__.rpartition('.')[2]}-{name}")
        for module in modules
        for name, test in those_of(module)
        if name not in without
    ]


@asynccontextmanager
async def by_socket(m: Millrace, path: Path) -> AsyncIterator[Millrace]:
    local = LocalListener(engine_of(m), path)
    await local.start()
    engine = RemoteEngine()
    engine.use(SocketTransport(path, engine.late))
    try:
        async with Millrace(engine) as other:
            yield other
    finally:
        await local.stop()


@asynccontextmanager
async def by_http(m: Millrace, path: Path) -> AsyncIterator[Millrace]:
    async with served(engine_of(m)) as url:
        engine = RemoteEngine()
        engine.use(HttpTransport(urlsplit(url), "token", None, engine.late))
        async with Millrace(engine) as other:
            yield other


@pytest.mark.parametrize("test", listed(MODULES, LONG))
def test_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: Callable[..., None]
) -> None:
    monkeypatch.setattr(harness, "WAYS", [by_http])
    test(tmp_path=tmp_path)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("test", listed(MODULES))
def test_over_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test: Callable[..., None]
) -> None:
    monkeypatch.setattr(harness, "WAYS", [by_socket])
    test(tmp_path=tmp_path)
