"""The calls of one client, in the process that has the engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

import millrace
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import engine_of
from millrace.core.commands import Command, LeaseMessages
from millrace.core.model import ShardId
from millrace.core.session_commands import (
    CloseSession,
    OpenSession,
    Receive,
    ReceiveResult,
    ResumeSession,
    SessionRef,
)
from millrace.errors import Full, Gone
from millrace.rpc.calls import Notify, Submit
from millrace.rpc.codec import AnswerStatus, read_answers
from millrace.rpc.frames import FrameReader
from millrace.server.auth.access import Principal, parse_rule
from millrace.server.rpc.call_permissions import Caller
from millrace.server.rpc.call_session import CallSession, RpcService
from millrace.server.rpc.local_socket import LocalListener
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
            talk = CallSession(RpcService(engine_of(m)), Caller(ROOT), lambda: None)
            with monkeypatch.context() as patched:
                patched.setattr(EmbeddedEngine, "submit", full)
                talk.take([(1, Submit(shard, 1000, LeaseMessages(1, 1000)))])
                assert not talk.is_idle
                await until(lambda: talk.is_idle)
            answers = b"".join(talk.take_answers())
            [[id_, status, _]] = [
                item for frame in FrameReader().feed(answers) for item in read_answers(frame)
            ]
            assert (id_, status) == (1, AnswerStatus.FAILED)
            monkeypatch.setattr(millrace.limits, "WIRE_WAITING_MAX", 1)
            talk.take([(2, Submit(shard, 60_000, LeaseMessages(1, 1000)))])
            assert not talk.is_idle, "there is room for one that waits"
            talk.end()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("is_gone", "is_server"), [(True, False), (True, True), (False, False), (False, True)]
)
def test_r7_sessions_end_with_their_program_and_with_nothing_else(
    tmp_path: Path, *, is_gone: bool, is_server: bool
) -> None:
    """Not with a front end, which speaks for others, nor with a server that ends connections."""

    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            shard, engine = queue.shards.first, engine_of(m)
            talk = CallSession(RpcService(engine), Caller(ROOT, is_server=is_server), lambda: None)
            talk.take([(1, Submit(shard, 0, OpenSession(1, True, 0, 3_600_000)))])
            await until(lambda: talk.is_idle)
            [claim] = talk._claims.values()
            held = await engine.ask(shard, Receive(claim, 0, 1), ReceiveResult)
            talk.end(is_gone=is_gone)
            resume = ResumeSession(claim.session, claim.history)
            if is_gone and not is_server:
                [lease] = await queue.lease(wait=30)
                assert (lease.body, lease.failures) == (b"x", 1)
                with pytest.raises(Gone):
                    await engine.ask(shard, resume, SessionRef)
            else:
                ref = await engine.ask(shard, resume, SessionRef)
                again = await engine.ask(shard, Receive(ref.claim, 0, 1), ReceiveResult)
                assert again == held

    asyncio.run(main())


def test_r7_what_cannot_be_told_now_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a session of a program that is gone, when the shard has no room for it."""

    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            shard, engine = queue.shards.first, engine_of(m)
            talk = CallSession(RpcService(engine), Caller(ROOT), lambda: None)
            talk.take([(1, Submit(shard, 0, OpenSession(1, True, 0, 3_600_000)))])
            await until(lambda: talk.is_idle)
            [claim] = talk._claims.values()
            await engine.ask(shard, Receive(claim, 0, 1), ReceiveResult)
            fails = [Full("no room", field="inbox", after_ms=1)]
            tell = EmbeddedEngine.tell

            def refuse(self: EmbeddedEngine, shard: ShardId, command: Command) -> None:
                if fails:
                    raise fails.pop()
                tell(self, shard, command)

            monkeypatch.setattr(EmbeddedEngine, "tell", refuse)
            talk.end(is_gone=True)
            [lease] = await queue.lease(wait=30)
            assert (lease.body, fails) == (b"x", [])

    asyncio.run(main())


def test_r7_a_session_is_ended_later_where_a_lasting_connection_tells_it_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A front end lasts: the session of a client that it misses would never end."""

    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            shard, engine = queue.shards.first, engine_of(m)
            talk = CallSession(RpcService(engine), Caller(ROOT, is_server=True), lambda: None)
            talk.take([(1, Submit(shard, 0, OpenSession(1, True, 0, 3_600_000)))])
            await until(lambda: talk.is_idle)
            [claim] = talk._claims.values()
            await engine.ask(shard, Receive(claim, 0, 1), ReceiveResult)
            fails = [Full("no room", field="inbox", after_ms=1)]
            tell = EmbeddedEngine.tell

            def refuse(self: EmbeddedEngine, shard: ShardId, command: Command) -> None:
                if fails:
                    raise fails.pop()
                tell(self, shard, command)

            monkeypatch.setattr(EmbeddedEngine, "tell", refuse)
            number = engine.proved(shard, claim.session, claim.history, session=True)
            proved = msgspec.structs.replace(claim, session=number)
            talk.take([(0, Notify(shard, CloseSession(proved, 0, failed=True)))])
            [lease] = await queue.lease(wait=10)
            assert (lease.body, lease.failures, fails) == (b"x", 1, [])
            talk.end()

    asyncio.run(main())


def test_r7_a_connection_that_is_ended_here_ends_no_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            queue = await m.queue("orders")
            await queue.publish(b"x")
            local = LocalListener(engine_of(m), tmp_path)
            await local.start()
            async with millrace.open(tmp_path) as other:
                theirs = await other.find("orders")
                session = await theirs.session(suspect=3600).open()
                order = await anext(session)
                [connection] = local.connections
                connection.close()
                # Its client is there, finds a new connection, and has its message.
                await order.settle()
                assert (await queue.stats())["settled"] == 1
                await queue.publish(b"y")
                assert (await anext(session)).number == 1
                await session.close()
            await local.stop()

    asyncio.run(main())
