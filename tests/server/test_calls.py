"""The calls of one client, in the process that has the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import millrace
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import engine_of
from millrace.core.commands import Lease
from millrace.errors import Full
from millrace.server.access import Principal, parse_rule
from millrace.server.calls import Service, Talk
from millrace.server.verbs import Caller
from millrace.wire.calls import Ask
from millrace.wire.codec import Status, read_answers
from millrace.wire.frames import Splitter
from tests.server.rest.harness import SMALL, until

ROOT = Principal("root", (parse_rule("allow * */*"),))


def test_a_call_that_is_refused_late_waits_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a shard that has to be asked for first, and that has no room then."""

    def full(*args: object) -> None:
        raise Full("no room", field="inbox")

    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            shard = (await m.queue("orders")).shards.first
            talk = Talk(Service(engine_of(m)), Caller(ROOT), lambda: None)
            with monkeypatch.context() as patched:
                patched.setattr(EmbeddedEngine, "submit", full)
                talk.take([(1, Ask(shard, 1000, Lease(1, 1000)))])
                assert not talk.is_idle
                await until(lambda: talk.is_idle)
            answers = b"".join(talk.take_answers())
            [[id_, status, _]] = [
                item for frame in Splitter().feed(answers) for item in read_answers(frame)
            ]
            assert (id_, status) == (1, Status.FAILED)
            monkeypatch.setattr(millrace.limits, "WIRE_WAITING_MAX", 1)
            talk.take([(2, Ask(shard, 60_000, Lease(1, 1000)))])
            assert not talk.is_idle, "there is room for one that waits"
            talk.end()

    asyncio.run(main())
