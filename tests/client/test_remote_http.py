"""Clients of a server in a process of its own that is killed and restarted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import millrace
from millrace import errors, limits, sync
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import Millrace, engine_of
from millrace.client.remote import RemoteEngine
from millrace.core.commands import ApplyTransaction as Transact
from millrace.core.model import ShardId
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    OpenSession,
    Receive,
    ReceiveResult,
    ResumeSession,
    SessionRef,
)
from millrace.rpc.calls import Heartbeat, Submit
from millrace.rpc.http_transport import SessionHeartbeat
from millrace.rpc.session_liveness import SessionLiveness
from tests.client.harness import SMALL, embedded, eventually, run
from tests.server.calls_site import served
from tests.server.server_process import Process


class Machine:
    """A server with a fixed address that may be killed."""

    def __init__(self, folder: Path, *options: object) -> None:
        self._folder = folder
        self._options = options
        self._process = Process(folder, *options)
        self._process.__enter__()
        self.address, self.token = self._process.address, self._process.token

    def kill(self) -> None:
        self._process.kill()

    def start(self) -> None:
        """Restart it, once the port is free."""
        listen = self.address.removeprefix("http://")
        self.close()
        self._process = Process(self._folder, "--listen", listen, *self._options)
        self._process.__enter__()

    def close(self) -> None:
        self._process.__exit__(None, None, None)


@asynccontextmanager
async def machine(folder: Path, *options: object) -> AsyncIterator[tuple[Machine, Millrace]]:
    """Start a server, and connect a program to it."""
    found = await asyncio.to_thread(Machine, folder, *options)
    try:
        async with millrace.connect(found.address, token=found.token) as m:
            yield found, m
    finally:
        await asyncio.to_thread(found.close)


# --- A server that is killed --------------------------------------------------------------------


@pytest.mark.process
def test_a_worker_goes_on_when_its_server_was_killed(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path / "data") as (server, m):
            orders, shipped = await m.queue("orders"), await m.queue("shipped")
            await orders.publish_many([b"%d" % n for n in range(60)])
            half, goes_on = asyncio.Event(), asyncio.Event()
            calls: Counter[bytes] = Counter()

            async def ship(order: millrace.Lease, t: millrace.Transaction) -> None:
                calls[order.body] += 1
                if calls.total() == 20:
                    half.set()
                if calls.total() >= 20:
                    # The server is gone when this one is to be settled.
                    await goes_on.wait()
                t.publish(shipped, order.body)

            async def is_done() -> bool:
                return (await orders.stats())["live"] == 0

            # What was handed out by an answer that nobody heard comes back after this time.
            async with millrace.Worker(orders, ship, concurrency=4, lease_seconds=5):
                await half.wait()
                await asyncio.to_thread(server.kill)
                goes_on.set()
                await asyncio.to_thread(server.start)
                await eventually(is_done)
            done = Counter(row.body for row in await shipped.peek(1_000))
            assert done == Counter(b"%d" % n for n in range(60))

    run(main())


@pytest.mark.process
def test_a_worker_waits_for_longer_than_calls_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path / "data") as (server, m):
            engine = engine_of(m)
            assert isinstance(engine, RemoteEngine)
            orders = await m.queue("orders")
            seen: list[bytes] = []

            async def note(order: millrace.Lease) -> None:
                seen.append(order.body)

            engine.patience = 0
            async with millrace.Worker(orders, note):
                await asyncio.to_thread(server.kill)
                with pytest.raises((errors.Closed, errors.Unknown)):
                    await orders.stats()
                await asyncio.to_thread(server.start)

                async def is_there() -> bool:
                    try:
                        await orders.publish(b"x")
                    except (errors.Closed, errors.Unknown):
                        return False
                    return True

                await eventually(is_there)

                async def is_seen() -> bool:
                    return b"x" in seen

                await eventually(is_seen)

    run(main())


@pytest.mark.process
def test_a_worker_that_is_stopped_while_its_server_is_away_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path / "data") as (server, m):
            engine = engine_of(m)
            assert isinstance(engine, RemoteEngine)
            orders = await m.queue("orders")
            await orders.publish_many([b"a", b"b"])
            begun = asyncio.Event()

            async def hang(order: millrace.Lease) -> None:
                begun.set()
                await asyncio.Event().wait()

            worker = millrace.Worker(orders, hang, concurrency=1, grace_seconds=0)
            running = asyncio.create_task(worker.run())
            await begun.wait()
            await asyncio.to_thread(server.kill)
            engine.patience = 0.05
            worker.stop()
            with pytest.raises((errors.Closed, errors.Unknown)):
                await running

    run(main())


@pytest.mark.process
def test_r7_a_session_goes_on_when_its_server_was_killed(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path / "data") as (server, m):
            orders = await m.queue("orders")
            await orders.publish_many([b"a", b"b"])
            async with orders.session(credit=2) as session:
                first, second = await anext(session), await anext(session)
                await first.settle()
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                await orders.publish(b"c")
                third = await anext(session)
                numbers = [lease.number for lease in (first, second, third)]
                assert (numbers, third.body) == ([0, 1, 2], b"c")
                await second.settle()
                await third.settle()
            assert (await orders.stats())["settled"] == 3

    run(main())


@pytest.mark.process
def test_a_session_is_had_through_any_process_that_speaks_http(tmp_path: Path) -> None:
    async def main() -> None:
        async with machine(tmp_path / "data", "--frontends", 2) as (_, m):
            orders = await m.queue("orders")
            await orders.publish_many([b"%d" % n for n in range(30)])
            async with orders.session(credit=5) as session:
                for n in range(30):
                    lease = await anext(session)
                    assert (lease.number, lease.body) == (n, b"%d" % n)
                    await lease.settle()
            assert (await orders.stats())["settled"] == 30

    run(main())


@pytest.mark.process
def test_the_blocking_twins_connect_and_share(tmp_path: Path) -> None:
    with Process(tmp_path / "data") as server:
        with sync.connect(server.address, token=server.token) as m:
            queue = m.queue("orders")
            queue.publish(b"x")
            with queue.session() as session:
                next(session).settle()
            with queue.snapshot() as snapshot:
                assert snapshot.arrow().read_all().num_rows == 0
            with pytest.raises(errors.Invalid, match="share it there"):
                sync.share(m)
        with pytest.raises(errors.Unauthenticated):
            sync.connect(server.address)
    with pytest.raises(errors.Closed):
        sync.connect(server.address, token=server.token, patience=0)
    with sync.open(tmp_path / "own", settings=SMALL) as m:
        with sync.share(m), sync.open(tmp_path / "own") as other:
            other.queue("orders").publish(b"y")
        assert [row.body for row in m.find("orders").peek()] == [b"y"]
    for wrong in (5, m._twin):
        with pytest.raises(errors.Invalid) as caught:
            sync.share(wrong)  # type: ignore[arg-type]
        assert caught.value.field == "m"


@embedded
async def test_a_transaction_that_may_have_been_done_is_done_once(m: Millrace) -> None:
    """The answer is lost after the commit: the retry is refused."""
    async with served(engine_of(m)) as url, millrace.connect(url, token="token") as other:
        await _ship(other, lambda t: None)


@embedded
async def test_a_transaction_that_extends_others_is_done_once_too(m: Millrace) -> None:
    """Extensions of the transaction's own do not make its retry safe."""
    async with served(engine_of(m)) as url, millrace.connect(url, token="token") as other:
        carts = await other.queue("carts")
        await carts.publish(b"cart")
        [cart] = await carts.lease()
        await _ship(other, lambda t: t.extend(cart, 60))
        await cart.settle()


async def _ship(other: Millrace, begin: Callable[[millrace.Transaction], None]) -> None:
    """Have a worker ship two orders, and lose the answer to the first."""
    orders, shipped = await other.queue("orders"), await other.queue("shipped")
    await orders.publish_many([b"a", b"b"])
    far = engine_of(other)
    assert isinstance(far, RemoteEngine)
    transact, lost = far.transact, list[Transact]()

    async def lose(command: Transact) -> tuple[object, ...]:
        answer = await transact(command)
        if not lost:
            lost.append(command)
            raise errors.Unknown("the answer was lost")
        return answer

    far.transact = lose  # type: ignore[method-assign]

    async def ship(order: millrace.Lease, t: millrace.Transaction) -> None:
        begin(t)
        t.publish(shipped, order.body)

    await millrace.Worker(orders, ship, idle=0).run()
    assert sorted(row.body or b"" for row in await shipped.peek()) == [b"a", b"b"]
    assert (await orders.stats())["live"] == 0


# --- Who speaks for a session -------------------------------------------------------------------


@embedded
async def test_r7_the_session_of_one_who_does_not_speak_any_more_ends(m: Millrace) -> None:
    own = await m.queue("orders")
    await own.publish(b"x")
    shard = own.shards.first
    with pytest.MonkeyPatch.context() as patch:
        async with served(engine_of(m)) as url, millrace.connect(url, token="token") as other:
            far = engine_of(other)
            # However long it keeps its messages when it is suspected.
            ref = await far.ask(shard, OpenSession(1, True, 0, 3_600_000), SessionRef)
            held = await far.ask(shard, Receive(ref.claim, 0, 1), ReceiveResult)
            assert held.next == 1
            patch.setattr(limits, "SESSION_SILENCE_SECONDS", 0.01)
            far.heartbeat(shard, ref.claim)
            [lease] = await own.lease(wait=30)
            assert (lease.body, lease.failures) == (b"x", 1)
            with pytest.raises(errors.Gone):
                await far.ask(shard, Receive(ref.claim, 0, 1), ReceiveResult)
            with pytest.raises(errors.Gone):
                await far.ask(
                    shard, ResumeSession(ref.claim.session, ref.claim.history), SessionRef
                )


@embedded
async def test_r7_one_who_speaks_is_heard(m: Millrace) -> None:
    heard = asyncio.Semaphore(0)
    engine = engine_of(m)
    hear = engine.heartbeat

    def listen(shard: ShardId, claim: Claim) -> None:
        hear(shard, claim)
        heard.release()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "WIRE_SPEAK_SECONDS", 0.01)
        patch.setattr(engine, "heartbeat", listen)
        async with served(engine) as url, millrace.connect(url, token="token") as other:
            queue = await other.queue("orders")
            async with queue.session():
                for _ in range(5):
                    await heard.acquire()
            # One that was closed is not spoken for.
            far = engine_of(other)
            assert isinstance(far, RemoteEngine)
            assert not far._transport._heartbeat._claims  # type: ignore[attr-defined]


CLAIM = Claim(7, b"h" * 16, 1, 1)


def test_only_who_is_not_heard_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        told: asyncio.Queue[tuple[ShardId, CloseSession]] = asyncio.Queue()
        fails = [errors.Full("no room", after_ms=1)]

        def tell(shard: ShardId, command: CloseSession) -> None:
            if fails:
                raise fails.pop()
            told.put_nowait((shard, command))

        hearing = SessionLiveness(tell)
        hearing.hear(ShardId(1), CLAIM)
        monkeypatch.setattr(limits, "SESSION_SILENCE_SECONDS", 0.001)
        hearing.hear(ShardId(1), Claim(8, CLAIM.history, 1, 1))
        hearing.hear(ShardId(1), Claim(8, CLAIM.history, 1, 1))
        ended = CloseSession(Claim(8, CLAIM.history, 1, 1), 0, failed=True)
        assert await told.get() == (1, ended)
        assert [key[1] for key in hearing._timers] == [7]
        # A session that was resumed is missed once, under its new name.
        hearing.hear(ShardId(1), Claim(7, CLAIM.history, 2, 1))
        assert (await told.get())[1].claim.number == 2
        assert hearing._timers == {}
        monkeypatch.setattr(limits, "SESSION_SILENCE_SECONDS", 60)
        hearing.hear(ShardId(1), CLAIM)
        monkeypatch.setattr(limits, "WIRE_SPEAKERS_MAX", 1)
        with pytest.raises(errors.Full):
            hearing.hear(ShardId(2), CLAIM)
        hearing.close()
        assert (told.empty(), hearing._timers) == (True, {})

    run(main())


def test_a_word_that_is_lost_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        said: asyncio.Queue[list[Heartbeat]] = asyncio.Queue()
        fails = [errors.Closed("away")]

        async def send(calls: list[Heartbeat]) -> None:
            if fails:
                raise fails.pop()
            said.put_nowait(calls)

        monkeypatch.setattr(limits, "WIRE_SPEAK_SECONDS", 0.001)
        speaking = SessionHeartbeat(send)
        ask = Submit(ShardId(1), 0, OpenSession(1, True, 0, 1000))
        speaking.note(ask, SessionRef(CLAIM, 1, True, 0, 1000, 0))
        assert await said.get() == [Heartbeat(ShardId(1), CLAIM)]
        speaking.close()

    run(main())


@embedded
async def test_one_session_is_spoken_for_by_one_claim(m: Millrace) -> None:
    """The owner of one session must not fill the table of heartbeats."""
    engine = engine_of(m)
    assert isinstance(engine, EmbeddedEngine)
    shard = (await m.queue("orders")).shards.first
    ref = await engine.ask(shard, OpenSession(1, True, 0, 60_000), SessionRef)
    timers = engine._liveness._timers
    engine.heartbeat(shard, ref.claim)
    claim = ref.claim
    for number, epoch in ((2, claim.epoch), (0, claim.epoch), (1, 99)):
        with pytest.raises(errors.Stale):
            engine.heartbeat(shard, Claim(claim.session, claim.history, number, epoch))
    with pytest.raises(errors.Stale):
        engine.heartbeat(shard, Claim(claim.session + 1, claim.history, 1, claim.epoch))
    assert list(timers) == [(shard, claim.session)]
    newer = await engine.ask(shard, ResumeSession(claim.session, claim.history), SessionRef)
    engine.heartbeat(shard, newer.claim)
    with pytest.raises(errors.Stale):
        engine.heartbeat(shard, claim)
    assert list(timers) == [(shard, claim.session)]


def test_a_word_that_nobody_answers_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        said: asyncio.Queue[list[Heartbeat]] = asyncio.Queue()

        async def send(calls: list[Heartbeat]) -> None:
            said.put_nowait(calls)
            await asyncio.Event().wait()

        monkeypatch.setattr(limits, "WIRE_SPEAK_SECONDS", 0.001)
        monkeypatch.setattr(limits, "WIRE_SPOKEN_SECONDS_MAX", 0.001)
        speaking = SessionHeartbeat(send)
        ask = Submit(ShardId(1), 0, OpenSession(1, True, 0, 1000))
        speaking.note(ask, SessionRef(CLAIM, 1, True, 0, 1000, 0))
        for _ in range(3):
            assert await said.get() == [Heartbeat(ShardId(1), CLAIM)]
        speaking.close()

    run(main())


@embedded
async def test_whoever_may_not_work_cannot_speak_for_a_session(m: Millrace) -> None:
    queue = await m.queue("orders")
    rules = {"token": ("allow * */*",), "weak": ("allow publish default/orders",)}
    async with served(engine_of(m), rules) as url, millrace.connect(url, token="weak") as other:
        with pytest.raises(errors.Denied):
            await (await other.find("orders")).session().open()
        far = engine_of(other)
        assert isinstance(far, RemoteEngine)
        async with queue.session() as session:
            claim = session._opened_buffer().claim
            far.heartbeat(queue.shards.first, claim)
            await other.queues()
        heard = engine_of(m)._liveness._timers  # type: ignore[attr-defined]
        assert heard == {}
