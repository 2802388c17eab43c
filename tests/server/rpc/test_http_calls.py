"""Calls over HTTP: which may be told, and when a request is over."""

from __future__ import annotations

import asyncio
import struct
from pathlib import Path
from typing import cast

import msgspec
import pytest
from pyroaring import BitMap64

import millrace
from millrace import errors, limits
from millrace.client.millrace import Millrace, engine_of
from millrace.core.commands import (
    ApplyTransaction,
    Command,
    CreateQueue,
    DeleteQueue,
    Publish,
    Release,
    SpecPart,
    Stage,
)
from millrace.core.format.block import Block
from millrace.core.format.receipt import Proved
from millrace.core.model import (
    CATALOG,
    LeaseId,
    NewMessage,
    ShardId,
)
from millrace.core.session_commands import Claim
from millrace.rpc.calls import (
    Call,
    FindQueue,
    Heartbeat,
    Notify,
    Submit,
)
from millrace.rpc.codec import FrameWriter
from millrace.rpc.frames import encode_frame
from millrace.server.auth.access import Quota
from millrace.server.http.response import Response
from millrace.server.rpc.call_permissions import OWNER, TOLD
from millrace.server.rpc.call_session import RpcService
from millrace.server.rpc.http_calls import TYPE, answer_calls
from tests.client.harness import embedded
from tests.rpc.samples import COMMANDS
from tests.server.calls_site import served as site
from tests.server.rest.harness import served
from tests.support.stall import ATTEMPTS, StallMonitor
from tests.support.timeouts import scaled

GUESSED = Proved.of(1, b"h" * 16, b"p" * 12)


async def sent(service: RpcService, *calls: tuple[int, Call]) -> Response:
    """The answer to a request with these calls."""
    sheet = FrameWriter()
    for id, call in calls:
        sheet.call(id, call)
    async with asyncio.timeout(scaled(60)):
        return await answer_calls(service, OWNER, b"".join(sheet.take()), now_ms=0)


@embedded
async def test_nothing_is_told_but_what_gives_back(m: Millrace) -> None:
    queue = await m.queue("orders")
    engine = engine_of(m)
    told: list[Command] = []
    hear = engine.tell

    def listen(shard: ShardId, command: Command) -> None:
        told.append(command)
        hear(shard, command)

    service = RpcService(engine)
    engine.tell = listen  # type: ignore[method-assign]
    commands = [cast("Command", command) for command in COMMANDS if type(command) not in TOLD]
    assert len(commands) > 20
    for command in commands:
        await sent(
            service, *((0, Notify(shard, command)) for shard in (CATALOG, queue.shards.first))
        )
    await sent(service, (0, Notify(CATALOG, CreateQueue("default", "made", SpecPart()))))
    await sent(service, (0, Notify(CATALOG, DeleteQueue("default", "orders"))))
    assert told == []
    assert await engine.queue_names("default") == ["orders"]
    await queue.publish(b"x")
    [lease] = await queue.lease()
    proved = engine.proved(queue.shards.first, lease.version)
    release = Release(cast("LeaseId", proved), BitMap64([lease.seq]), proved.history)
    await sent(service, (0, Notify(queue.shards.first, release)))
    assert [type(command) for command in told] == [Release]
    [again] = await queue.lease(wait=10)
    assert again.seq == lease.seq


@embedded
async def test_a_request_that_only_tells_of_a_shard_not_known_yet_is_answered(m: Millrace) -> None:
    shard = (await m.queue("orders")).shards.first
    release = Release(cast("LeaseId", GUESSED), BitMap64([1]), b"h" * 16)
    engine = engine_of(m)
    session = (await m.queue("orders")).session()
    async with session:
        claim = session._ref.claim  # type: ignore[union-attr]
        number = engine.proved(shard, claim.session, claim.history, session=True)
        proved = Claim(number, claim.history, claim.number, claim.epoch)
        for call in (
            Notify(shard, release),
            Heartbeat(shard, proved),
            Notify(ShardId(999), release),
        ):
            # A service of its own: it has learned nothing yet.
            assert (await sent(RpcService(engine), (0, call))).status == 200


def test_each_call_of_a_request_counts_against_the_rate(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            server.app.quotas.configure(Quota(requests=2))
            sheet = FrameWriter()
            for id in range(1, 100):
                sheet.call(id, FindQueue("default", "orders"))
            body = b"".join(sheet.take())
            assert (await server.ask("POST", "/v1/calls", body, type=TYPE)).status == 200
            refused = await server.ask("GET", "/v1/spaces")
            assert (refused.status, refused.json["field"]) == (429, "requests")

    asyncio.run(main())


@embedded
async def test_whoever_may_only_work_reads_what_they_hold(m: Millrace) -> None:
    """Rows that came with no answer are read by the lease call that holds them, and no others."""
    own = await m.queue("orders")
    large = b"x" * (limits.WIRE_BURST_BYTES // 2)
    await own.publish_many([large, large, large, b"theirs"])
    rules = {"token": ("allow work default/orders",)}
    async with site(engine_of(m), rules) as url, millrace.connect(url, token="token") as far:
        queue, engine = await far.find("orders"), engine_of(far)
        shard = own.shards.first
        held = await queue.lease(3)
        assert [lease.body for lease in held] == [large, large, large]
        with pytest.raises(errors.Denied):
            await engine.rows(shard, BitMap64([1, 4]), 1000)
        grant = held[0]._grant
        of = (grant.lease, grant.history)
        found = await engine.rows(shard, BitMap64([1, 2, 3, 4]), 2**20, *of)
        assert [row.seq for row in found] == [1, 2, 3]
        await held[0].settle()
        found = await engine.rows(shard, BitMap64([1, 2, 4]), 2**20, *of)
        assert [row.seq for row in found] == [2]
        forged = cast("LeaseId", Proved.of(int(grant.lease), grant.history, b"p" * 12))
        with pytest.raises(errors.Forged):
            await engine.rows(shard, BitMap64([4]), 1000, forged, grant.history)
        async with queue.session(credit=1) as session:
            assert (await anext(session)).body == b"theirs"


def _frame(head: bytes) -> bytes:
    return b"".join(map(bytes, encode_frame(head)))


def _lists(size: int) -> bytes:
    """A call of empty lists, each of which is a byte here and 72 in memory."""
    return b"\x93\x01\x05\xdd" + size.to_bytes(4) + b"\x90" * size


HEAVY = {
    "frames of lists": 15 * _frame(b"\xdc\x03\xe0" + 992 * _lists(4_200)),
    "calls of lists": 7 * _frame(b"\xdc\x02\x40" + 576 * _lists(7_000)),
    "a call of lists": _frame(b"\x91" + _lists(4_000_000)),
    "a call of half as many lists": _frame(b"\x91" + _lists(500_000)),
    "items that are no calls": 15 * _frame(b"\xdd" + (4_000_000).to_bytes(4) + b"\x90" * 4_000_000),
    "frames without calls": 2_000_000 * _frame(b"\x90"),
    "refused calls": 4 * _frame(b"\xdc\x10\x00" + 4_096 * b"\x93\x01\x05\x90"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_sec_30_a_body_of_calls_costs_about_its_own_memory(tmp_path: Path, name: str) -> None:
    """Whoever is known may send it, without a rule that allows them anything."""

    async def main() -> None:
        async with served(tmp_path) as server:
            body = HEAVY[name]
            # What is imported and allocated once.
            await server.ask("POST", "/v1/calls", _frame(b"\x90"), type=TYPE, role="nobody")
            monitor = StallMonitor()
            for _ in range(ATTEMPTS):
                monitor = StallMonitor()
                async with monitor:
                    for _ in range(3):
                        found = await server.ask(
                            "POST", "/v1/calls", body, type=TYPE, role="nobody"
                        )
                        assert found.status in (200, 400, 413)
                        assert len(found.body) < 4_096 * 256
                if monitor.is_responsive:
                    break
            monitor.assert_responsive()
            assert monitor.rss_growth_bytes < 3 * len(body) + 2**27

    asyncio.run(main())


def test_sec_09_a_blob_is_stored_once(tmp_path: Path) -> None:
    """1 MB was stored 200 times by one request of 1 MB, past the quota of bytes."""

    async def main() -> None:
        async with served(tmp_path) as server:
            queue = await server.millrace.queue("orders")
            sheet = FrameWriter()
            block = Block.of_bodies([b"x" * 100_000])
            sheet.call(1, Submit(queue.shards.first, 0, Publish(block)))
            data = b"".join(sheet.take())
            head, blobs = struct.unpack_from("<II", data)
            [call] = msgspec.msgpack.decode(data[8 : 8 + head])
            calls = msgspec.msgpack.encode([[id, *call[1:]] for id in range(1, 201)])
            lengths = struct.pack("<II", len(calls), blobs)
            body = lengths + calls + bytes(-len(calls) % 8) + data[len(data) - blobs :]
            answer = await server.ask("POST", "/v1/calls", body, type=TYPE, role="producer")
            assert answer.status == 200
            assert len(await queue.peek(200)) == 1

    asyncio.run(main())


@embedded
async def test_sec_09_rows_are_counted_as_they_are_stored(m: Millrace) -> None:
    shard = (await m.queue("orders")).shards.first
    service = RpcService(engine_of(m))
    # All rows of a block have offsets of keys and headers, if one has any.
    small = (NewMessage(b"", b"k", (("n", b"v"),)), *(NewMessage(b"") for _ in range(4_000)))
    block = Block.of_messages(small)
    large = Block.of_bodies([b"x" * 1000] * 100)
    commands: list[tuple[Command, int]] = [
        (Publish(small), block.size()),
        (ApplyTransaction(((shard, Publish(small)), (shard, Stage("s", large)))), 150_000),
        (Publish(large), large.size()),
        (Stage("s", large), large.size()),
        (Publish((NewMessage(b"x" * 10_000),)), 10_000),
    ]
    for command, stored in commands:
        sheet = FrameWriter()
        sheet.call(1, Submit(shard, 0, command))
        body = b"".join(sheet.take())
        owed: list[int] = []
        await answer_calls(service, OWNER, body, now_ms=0, owe_bytes=owed.append)
        assert len(body) + sum(owed) >= stored, type(command)
        assert len(body) + sum(owed) <= max(len(body), 1.3 * stored), type(command)
