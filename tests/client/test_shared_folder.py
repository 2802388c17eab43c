"""A folder used by several processes: the owner shares it, and may be killed."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from pyroaring import BitMap64

import millrace
from millrace import errors, limits, sync
from millrace.client.millrace import Millrace, engine_of
from millrace.client.remote import RemoteEngine
from millrace.core.answers import Leased
from millrace.core.commands import LeaseMessages, Settle
from millrace.core.format.receipt import Proved
from millrace.core.model import LeaseId
from millrace.maintenance.backup import BackupThrottle
from millrace.rpc.calls import ListSpaces
from millrace.rpc.codec import FrameWriter, read_calls
from millrace.rpc.frames import BlobWriter, FrameReader, encode_frame
from millrace.rpc.socket_transport import SocketTransport
from millrace.rpc.transport import ConnectionLost
from millrace.server.rpc.local_socket import LocalListener
from tests.client.harness import SMALL, eventually, opened, run
from tests.support.timeouts import scaled

ROOT = Path(__file__).parents[2]


@contextmanager
def sharer(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that owns the folder and shares it."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.client.sharer", str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    ) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "open\n"
            yield owner
        finally:
            owner.kill()


@asynccontextmanager
async def shared(path: Path) -> AsyncIterator[tuple[Millrace, Millrace, LocalListener]]:
    """Return an owner, a sharer of its folder, and the socket, all in this process."""
    async with opened(path) as owner:
        local = LocalListener(engine_of(owner), path)
        await local.start()
        try:
            async with other(path) as guest:
                yield owner, guest, local
        finally:
            await local.stop()


@asynccontextmanager
async def other(path: Path) -> AsyncIterator[Millrace]:
    engine = RemoteEngine()
    engine.use(SocketTransport(path, engine.late))
    async with Millrace(engine) as guest:
        yield guest


def remote(m: Millrace) -> RemoteEngine:
    engine = engine_of(m)
    assert isinstance(engine, RemoteEngine)
    return engine


# --- Two processes ------------------------------------------------------------------------------


@pytest.mark.process
def test_open_finds_whoever_shares_the_folder(tmp_path: Path) -> None:
    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m:
            assert isinstance(engine_of(m), RemoteEngine)
            queue = await m.queue("orders", keyed=True)
            assert await queue.publish(b"x", key="k", headers={"a": "1"}) == 1
            [lease] = await queue.lease()
            assert (lease.body, lease.key, lease.headers) == (b"x", b"k", (("a", b"1"),))
            await queue.settle(lease.receipt)
            assert (await queue.stats())["settled"] == 1
            assert await m.queues() == ["orders"]
            assert (await m.health()).refuses is None
            async with millrace.open(tmp_path) as third:
                assert await third.queues() == ["orders"]

    with sharer(tmp_path):
        run(main())


@pytest.mark.process
def test_the_blocking_facade_shares_as_well(tmp_path: Path) -> None:
    with sharer(tmp_path), sync.open(tmp_path) as m:
        queue = m.queue("orders")
        queue.publish_many([b"a", b"b", b"c"])
        assert [lease.body for lease in queue.lease(3)] == [b"a", b"b", b"c"]
        with queue.snapshot() as snapshot:
            table = snapshot.arrow().read_all()
        assert table.column("value").to_pylist() == [b"a", b"b", b"c"]


@pytest.mark.process
def test_a_backup_is_made_where_the_engine_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with millrace.open(tmp_path / "data") as m:
            await (await m.queue("orders")).publish(b"x")
            backup = await m.backup(tmp_path / "backups")
            assert (await millrace.verify(tmp_path / "backups")).rows == 1
            assert backup.path.parent == tmp_path / "backups"

    with sharer(tmp_path / "data"):
        run(main())


def test_whoever_waits_for_a_backup_elsewhere_is_told_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with shared(tmp_path / "data") as (_, other, _):
            await (await other.queue("orders")).publish(b"x" * 100_000)
            heard: list[tuple[int, int]] = []
            may_go_on = threading.Event()
            step = BackupThrottle.__call__

            def held(rests: BackupThrottle, count: int) -> None:
                step(rests, count)
                may_go_on.wait(scaled(30))

            def told(done: int, of: int) -> None:
                heard.append((done, of))
                if done:  # The first question may come before the first byte.
                    may_go_on.set()

            monkeypatch.setattr(BackupThrottle, "__call__", held)
            monkeypatch.setattr(limits, "BACKUP_TOLD_SECONDS", 0.001)
            await other.backup(tmp_path / "backups", progress=told)
            assert heard[-1][0] == heard[-1][1]
            assert any(0 < done < heard[-1][0] for done, _ in heard)

    run(main())


def test_a_folder_that_is_not_shared_is_in_use(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path):
            with pytest.raises(errors.InUse):
                async with millrace.open(tmp_path):
                    pass

    run(main())


# --- A killed owner -----------------------------------------------------------------------------


@pytest.mark.process
def test_numbered_publishes_go_on_past_a_killed_owner(tmp_path: Path) -> None:
    async def main() -> None:
        with sharer(tmp_path) as first:
            async with millrace.open(tmp_path) as m, AsyncExitStack() as later:
                queue = await m.queue("orders")
                async with queue.publisher("web", window=16) as publisher:
                    for number in range(200):
                        await publisher.send(b"%d" % number)
                        if number == 100:
                            first.kill()
                            await asyncio.to_thread(first.wait)
                            later.enter_context(sharer(tmp_path))
                    await publisher.flush()
                rows = await queue.peek(1_000)
                assert [row.body for row in rows] == [b"%d" % number for number in range(200)]

    run(main())


@pytest.mark.process
def test_leases_and_receipts_survive_a_killed_owner(tmp_path: Path) -> None:
    async def main() -> None:
        with sharer(tmp_path) as first:
            async with millrace.open(tmp_path) as m:
                queue = await m.queue("orders")
                await queue.publish_many([b"a", b"b"])
                one, two = await queue.lease(2, seconds=600)
                first.kill()
                await asyncio.to_thread(first.wait)
                waiting = asyncio.create_task(queue.lease(wait=60))
                with sharer(tmp_path):
                    await one.settle()
                    assert await queue.settle([two.receipt]) == {}
                    await queue.publish(b"c", producer="p", number=1)
                    [lease] = await waiting
                    assert lease.body == b"c"
                    assert (await queue.stats())["settled"] == 2

    run(main())


@pytest.mark.process
def test_a_publish_without_number_is_unknown_when_its_owner_is_killed(tmp_path: Path) -> None:
    async def main() -> None:
        with sharer(tmp_path) as owner:
            async with millrace.open(tmp_path) as m:
                queue = await m.queue("orders")
                # It neither answers nor ends: what is sent now is not heard of.
                owner.send_signal(19)
                publishing = asyncio.create_task(queue.publish(b"x"))
                numbered = asyncio.create_task(queue.publish(b"y", producer="p", number=1))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                owner.kill()
                with pytest.raises(errors.Unknown, match="it was done, or it was not"):
                    await publishing
                with sharer(tmp_path):
                    await numbered
                    assert b"y" in [row.body for row in await queue.peek(10)]

    run(main())


def test_whoever_waits_too_long_is_told_that_nobody_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        async with shared(tmp_path) as (_, guest, local):
            queue = await guest.queue("orders")
            await local.stop()
            remote(guest).patience = 0.05
            with suppress(errors.MillraceError):
                # It may notice by this that nobody is there any more.
                await queue.spec()
            with pytest.raises(errors.Closed, match="is its engine open"):
                await queue.publish(b"x")

    run(main())


# --- What was handed out returns ----------------------------------------------------------------


def test_a_cancelled_lease_call_leaves_nothing_leased(tmp_path: Path) -> None:
    async def main() -> None:
        async with shared(tmp_path) as (owner, guest, _):
            queue = await guest.queue("orders")
            waiting = asyncio.create_task(queue.lease(wait=60))
            await asyncio.sleep(0)
            # Answered in order: the lease call waits on the shard by now.
            await queue.stats()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await queue.publish(b"x")
            own = await owner.find("orders")
            [lease] = await own.lease(wait=10)
            assert lease.deliveries == 1

    run(main())


def test_an_answer_that_comes_too_late_is_given_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with shared(tmp_path) as (_, guest, _):
            queue = await guest.queue("orders")
            await queue.publish(b"x")
            for _ in range(5):
                leasing = asyncio.create_task(queue.lease(seconds=600))
                # It is sent, and cancelled before its answer can have come.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                leasing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await leasing
            [lease] = await queue.lease(wait=10)
            assert lease.body == b"x"

    run(main())


@pytest.mark.parametrize("is_quick", [True, False])
def test_a_call_that_was_given_up_is_forgotten(tmp_path: Path, *, is_quick: bool) -> None:
    """Whether or not its answer took a task on the other side."""

    async def main() -> None:
        async with shared(tmp_path) as (owner, guest, local):
            queue, engine = await guest.queue("orders"), remote(guest)
            if not is_quick:
                local.service.quick = None
            pending = engine._transport._connection._pending  # type: ignore[attr-defined]
            asked = [
                engine.submit(queue.shards.first, LeaseMessages(1, 600_000), 60_000)
                for _ in range(20)
            ]
            tasks = [asyncio.create_task(queue.lease(wait=60)) for _ in range(20)]
            await asyncio.sleep(0)
            await queue.stats()
            assert len(pending) == 40
            for one in asked:
                engine.take_back(one)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            while pending:
                await queue.stats()
            await queue.publish(b"x")
            [lease] = await (await owner.find("orders")).lease(wait=10)
            assert lease.deliveries == 1, "none of them was handed anything"

    run(main())


def test_a_mistake_of_one_who_is_told_takes_nothing_from_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with shared(tmp_path) as (_, guest, _):
            queue, engine = await guest.queue("orders"), remote(guest)
            told: asyncio.Future[object] = asyncio.get_running_loop().create_future()

            def fail(asked: object) -> None:
                raise RuntimeError("nobody foresaw it")

            for tell in (fail, told.set_result):
                engine.then(engine.submit(queue.shards.first, LeaseMessages(1, 600_000)), tell)
            answer = engine.heard(await asyncio.wait_for(told, scaled(60)))
            assert isinstance(answer, Leased)
            assert not answer.seqs

    run(main())
    assert "nobody foresaw it" in caplog.text


def test_a_lost_connection_gives_back_what_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with shared(tmp_path) as (owner, guest, local):
            queue = await guest.queue("orders")
            waiting = asyncio.create_task(queue.lease(wait=60))
            await asyncio.sleep(0)
            await queue.stats()
            remote(guest)._closed = True
            for connection in list(local.connections):
                connection._transport.abort()
            with pytest.raises(errors.Closed):
                await waiting
            own = await owner.find("orders")
            await own.publish(b"x")
            [lease] = await own.lease(wait=10)
            assert lease.deliveries == 1

    run(main())


def test_r7_a_session_whose_process_is_gone_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with shared(tmp_path) as (owner, guest, local):
            queue = await guest.queue("orders")
            await queue.publish(b"x")
            session = await queue.session(suspect=3600).open()
            assert (await anext(session)).body == b"x"
            remote(guest)._closed = True
            for connection in list(local.connections):
                connection._transport.abort()
            own = await owner.find("orders")
            [lease] = await own.lease(wait=30)
            assert (lease.body, lease.failures) == (b"x", 1)

    run(main())


# --- Who is believed ----------------------------------------------------------------------------


def test_a_lease_that_nobody_was_handed_is_forged(tmp_path: Path) -> None:
    async def main() -> None:
        async with shared(tmp_path) as (owner, guest, _):
            queue = await guest.queue("orders")
            await queue.publish(b"x")
            own = await owner.find("orders")
            [lease] = await own.lease()
            engine, shard = remote(guest), queue.shards.first
            history = lease._grant.history
            guessed = LeaseId(Proved.of(lease.version, history, b"p" * 12))
            with pytest.raises(errors.Forged):
                await engine.ask(shard, Settle(guessed, BitMap64([1]), history), object)
            with pytest.raises(errors.Forged):
                await engine.ask(
                    shard, Settle(LeaseId(lease.version), BitMap64([1]), history), object
                )
            text = lease.receipt
            await queue.extend(text, 60)
            with pytest.raises(errors.Forged):
                await queue.settle(text[:-6] + "AAAAAA")
            await queue.settle(text)

    run(main())


def test_what_is_told_and_refused_ends_no_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with shared(tmp_path) as (_, guest, _):
            queue = await guest.queue("orders")
            engine, shard = remote(guest), queue.shards.first
            before = engine._transport._connection  # type: ignore[attr-defined]
            guessed = LeaseId(Proved.of(1, b"h" * 16, b"p" * 12))
            for _ in range(3):
                engine.tell(shard, Settle(guessed, BitMap64([1]), b"h" * 16))
                # One that would end the connection would do so before the second is answered.
                await queue.stats()
                await queue.stats()
            assert engine._transport._connection is before  # type: ignore[attr-defined]

    run(main())


def test_a_receipt_of_another_folder_is_forged(tmp_path: Path) -> None:
    async def main() -> None:
        async with shared(tmp_path / "a") as (_, one, _), shared(tmp_path / "b") as (_, two, _):
            for m in (one, two):
                await (await m.queue("orders")).publish(b"x")
            [foreign] = await (await one.queue("orders")).lease()
            [own] = await (await two.queue("orders")).lease()
            queue = await two.queue("orders")
            with pytest.raises(errors.Forged):
                await queue.settle([own, foreign.receipt])
            with pytest.raises(errors.Forged):
                async with two.transaction() as t:
                    t.settle(foreign.receipt)
            await own.settle()

    run(main())


def test_messages_come_with_the_answer_of_their_lease_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with shared(tmp_path) as (_, guest, _):
            queue = await guest.queue("orders")
            await queue.publish(b"x")
            engine = remote(guest)
            leased = await engine.ask(queue.shards.first, LeaseMessages(1, 1000), Leased)
            assert len(engine._rows_ahead) == 1
            [row] = await engine.rows(queue.shards.first, leased.seqs, 1000)
            assert row.body == b"x"
            assert not engine._rows_ahead

    run(main())


# --- The socket ---------------------------------------------------------------------------------


def test_the_socket_is_the_users_own_and_goes_with_the_owner(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "socket"
        async with shared(tmp_path):
            mode = path.stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o600
        assert not path.exists()

    run(main())


@pytest.mark.process
def test_a_socket_that_was_left_over_is_replaced(tmp_path: Path) -> None:
    with sharer(tmp_path) as owner:
        owner.kill()
        owner.wait()
    assert (tmp_path / "socket").exists()

    async def main() -> None:
        async with shared(tmp_path) as (_, guest, _):
            assert await guest.queues() == []

    run(main())


def test_a_path_that_is_too_long_for_a_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)

    async def main() -> None:
        async with shared(folder) as (_, guest, _):
            places.append(Path((folder / "socket.path").read_text()))
            modes.append(os.stat(places[0].parent).st_mode)
            assert await guest.queues() == []

    places: list[Path] = []
    modes: list[int] = []
    run(main())
    assert stat.S_IMODE(modes[0]) == 0o700
    assert not (folder / "socket.path").exists()
    assert not places[0].parent.exists()


@pytest.mark.parametrize(
    "data", [b"\xff" * 8, b"GET / HTTP/1.1\r\n\r\n", b"\1\0\0\0\0\0\0\0\xc1" * 3]
)
def test_whoever_speaks_something_else_is_cut_off(tmp_path: Path, data: bytes) -> None:
    async def main() -> None:
        async with shared(tmp_path) as (_, guest, local):
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / "socket"))
            writer.write(data)
            await reader.read()
            writer.close()
            assert await guest.queues() == []
            await eventually(lambda: _one(local))

    async def _one(local: LocalListener) -> bool:
        return len(local.connections) == 1

    run(main())


@pytest.mark.parametrize("answer", [b"\x92\1\0", b"\x93\1\4\xc0", b"\1", b"\xc0"])
def test_an_answer_that_is_none_ends_the_line_and_who_waits_is_told(
    tmp_path: Path, answer: bytes
) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = FrameWriter()
        hello.hello(0)
        writer.writelines(hello.take())
        await reader.read(1)
        writer.writelines(encode_frame(b"\x91" + answer, BlobWriter()))
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_unix_server(speak, tmp_path / "socket")
        line = SocketTransport(tmp_path, lambda call, answered: None)
        with pytest.raises(ConnectionLost):
            await asyncio.wait_for(line.call(ListSpaces()), 10)
        await line.close()
        server.close()

    run(main())


def test_many_calls_of_a_turn_go_out_before_it_is_over(tmp_path: Path) -> None:
    """Otherwise two processes alternate: one is idle while the other reads."""
    heard: list[int] = []
    most = limits.WIRE_TOGETHER_MAX

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = FrameWriter()
        hello.hello(0)
        writer.writelines(hello.take())
        splitter = FrameReader()
        while sum(heard) < 2 * most + 1:
            heard.extend(len(read_calls(got)) for got in splitter.feed(await reader.read(65536)))
        writer.close()

    async def main() -> None:
        server = await asyncio.start_unix_server(speak, tmp_path / "socket")
        line = SocketTransport(tmp_path, lambda call, answered: None)
        await line.connect()
        told: list[object] = []
        for _ in range(2 * most + 1):
            begun = line.begin(ListSpaces())
            assert begun is not None
            begun.then(told.append)

        async def all_told() -> bool:
            return len(told) == 2 * most + 1

        await eventually(all_told)
        assert heard == [most, most, 1]
        await line.close()
        server.close()

    run(main())
