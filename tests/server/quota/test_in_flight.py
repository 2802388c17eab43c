"""What callers hold at a time is counted however they ask for it."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import msgspec
import pytest

import millrace
from millrace.client.connecting import Connecting
from millrace.client.embedded import EmbeddedEngine
from millrace.client.millrace import engine_of
from millrace.core.commands import Command, Explain
from millrace.core.model import ShardId
from millrace.core.session_commands import (
    CloseSession,
    GrantCredit,
    Granted,
    OpenSession,
    SessionRef,
)
from millrace.errors import Exhausted, Full, Invalid
from millrace.rpc.calls import Submit
from millrace.server.auth.access import Principal, Quota
from millrace.server.quota.in_flight import InFlightQuota
from millrace.server.quota.quotas import Quotas
from millrace.server.rpc.queries import ask
from tests.server.rest.harness import SMALL, Answer, Served, front, until
from tests.server.web.test_request_audit import QUEUES, served

ORDERS = f"{QUEUES}/orders"


def connected(server: Served) -> Connecting:
    """As ada, who may have three messages in flight and one pin."""
    return millrace.connect(f"http://127.0.0.1:{server.port}", token="ada")


async def filled(server: Served, count: int = 20) -> None:
    await (await server.millrace.find("orders")).publish_many([b"x"] * count)


def test_calls_hand_out_no_more_than_the_quota(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server, connected(server) as m:
            await filled(server)
            queue = await m.find("orders")
            first = await queue.lease(10)
            assert len(first) == 3, "fewer before none"
            with pytest.raises(Exhausted) as caught:
                await queue.lease(1)
            assert (caught.value.field, caught.value.limit) == ("in_flight", 3)
            refused = await server.ask("POST", f"{ORDERS}/leases", {}, role="ada")
            assert refused.status == 429, "the same count, whichever way it is asked for"
            await queue.settle(first[:1])
            await queue.release(first[1:2])
            assert len(await queue.lease(10)) == 2
            async with m.transaction() as t:
                t.settle(first[2:])
            assert len(await queue.lease(10)) == 1

    asyncio.run(main())


def test_calls_pin_no_more_than_the_quota(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server, connected(server) as m:
            await filled(server)
            queue = await m.find("orders")
            async with queue.snapshot():
                with pytest.raises(Exhausted) as caught:
                    await queue.snapshot().__aenter__()
                assert caught.value.field == "pins"
                taken = await server.ask("GET", f"{ORDERS}/rows", role="ada")
                assert (taken.status, taken.json["field"]) == (429, "pins")
            assert (await server.ask("GET", f"{ORDERS}/rows", role="ada")).status == 200
            assert (await server.ask("GET", f"{ORDERS}/rows", role="ada")).status == 200
            async with queue.snapshot():
                pass

    asyncio.run(main())


def test_a_range_is_counted_while_it_is_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await filled(server)
            arrow = {"accept": "application/vnd.apache.arrow.stream"}
            whole = await server.ask("GET", f"{ORDERS}/rows", role="ada", headers=arrow)
            assert whole.status == 200
            quotas = server.app.quotas
            await until(lambda: quotas.held("ada", "pins", 0) == 0)

    asyncio.run(main())


def test_what_ended_elsewhere_is_found_out_before_someone_is_refused(tmp_path: Path) -> None:
    """Receipts are good anywhere: through another front end, or in the program that has it open."""

    async def main() -> None:
        async with served(tmp_path) as server:
            await filled(server)
            leased = await server.ask("POST", f"{ORDERS}/leases", {"count": 3}, role="ada")
            receipts = [str(one["receipt"]) for one in leased.items("messages")]
            queue = await server.millrace.find("orders")
            await queue.settle(receipts[:1])
            await queue.release(receipts[1:2])
            again = await server.ask("POST", f"{ORDERS}/leases", {"count": 9}, role="ada")
            assert len(again.items("messages")) == 2
            full = await server.ask("POST", f"{ORDERS}/leases", {"count": 9}, role="ada")
            assert full.status == 429

    asyncio.run(main())


def test_what_is_settled_counts_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await filled(server)
            leased = await server.ask("POST", f"{ORDERS}/leases", {"count": 3}, role="ada")
            receipts = [str(one["receipt"]) for one in leased.items("messages")]
            for way, left in (("settle", 2), ("release", 1), ("discard", 0)):
                body = {"receipts": receipts[left : left + 1]}
                await server.ask("POST", f"{ORDERS}/{way}", body, role="ada")
                assert server.app.quotas.held("ada", "in_flight", 0) == left

    asyncio.run(main())


def test_the_credit_of_sessions_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await filled(server)
            opened = await server.ask("POST", f"{ORDERS}/sessions", {"credit": 2}, role="ada")
            session = f"{ORDERS}/sessions/{opened.text('session')}"
            leased = await server.ask("POST", f"{ORDERS}/leases", {"count": 9}, role="ada")
            assert len(leased.items("messages")) == 1
            full = await server.ask("POST", f"{ORDERS}/sessions", {"credit": 1}, role="ada")
            assert (full.status, full.json["field"]) == (429, "in_flight")
            more = await server.ask("POST", f"{session}/grant", {"credit": 1}, role="ada")
            assert more.status == 429
            assert (await server.ask("DELETE", session, role="ada")).status == 200
            wide = await server.ask("POST", f"{ORDERS}/sessions", {"credit": 100}, role="ada")
            assert wide.status == 201
            assert server.app.quotas.held("ada", "in_flight", 0) == 3
            bad = await server.ask("POST", f"{ORDERS}/leases", {"count": -100}, role="ada")
            assert bad.status in (400, 429)
            assert server.app.quotas.held("ada", "in_flight", 0) == 3

    asyncio.run(main())


def test_the_credit_of_sessions_of_programs_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server, connected(server) as m:
            await filled(server)
            queue, quotas = await m.find("orders"), server.app.quotas
            async with queue.session(credit=100) as session:
                first = [await anext(session) for _ in range(3)]
                assert quotas.held("ada", "in_flight", 0) == 3, "fewer before none"
                with pytest.raises(Exhausted) as caught:
                    await queue.session(credit=1).open()
                assert (caught.value.field, caught.value.limit) == ("in_flight", 3)
                refused = await server.ask("POST", f"{ORDERS}/leases", {}, role="ada")
                assert refused.status == 429, "the same count, whichever way it is asked for"
                await first[0].settle()
                await anext(session)
                with pytest.raises(Exhausted):
                    await queue.lease(1)
            assert quotas.held("ada", "in_flight", 0) == 0
            assert len(await queue.lease(10)) == 3

    asyncio.run(main())


def test_credit_that_programs_use_up_counts_until_it_is_settled(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server, connected(server) as m:
            await filled(server)
            queue, quotas = await m.find("orders"), server.app.quotas
            async with queue.session(credit=0, refill=False) as session:
                assert quotas.held("ada", "in_flight", 0) == 0
                await session.grant(9)
                first = [await anext(session) for _ in range(3)]
                assert quotas.held("ada", "in_flight", 0) == 3
                with pytest.raises(Exhausted):
                    await session.grant(1)
                for lease in first:
                    await lease.settle()
                assert quotas.held("ada", "in_flight", 0) == 0
                for _ in range(5):
                    await session.grant(1)
                    await (await anext(session)).settle()
                await session.grant(2)
                held = [await anext(session), await anext(session)]
                assert quotas.held("ada", "in_flight", 0) == len(held)
            assert len(await queue.lease(10)) == 1, "before what has ended is found out"
            assert len(await queue.lease(10)) == 2

    asyncio.run(main())


def test_credit_that_is_drained_counts_by_what_came_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server, connected(server) as m:
            await filled(server, 1)
            queue, quotas = await m.find("orders"), server.app.quotas
            async with queue.session(credit=0, refill=False) as session:
                assert await session.grant(3, drain=True) == 2
                assert quotas.held("ada", "in_flight", 0) == 1
                await (await anext(session)).settle()
                assert quotas.held("ada", "in_flight", 0) == 0

    asyncio.run(main())


def test_a_session_that_goes_on_counts(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server, connected(server) as m:
            await filled(server)
            queue, quotas = await m.find("orders"), server.app.quotas
            own = await (await server.millrace.find("orders")).session(credit=7).open()
            async with queue.session(resume=own.id):
                assert quotas.held("ada", "in_flight", 0) == 7, "it had as many"
                with pytest.raises(Exhausted):
                    await queue.lease(1)
            assert quotas.held("ada", "in_flight", 0) == 0

    asyncio.run(main())


def test_sessions_count_until_they_have_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server, connected(server) as m:
            await filled(server)
            queue, engine = await m.find("orders"), engine_of(m)
            shard = engine_of(server.millrace).unseal((await queue.lease(1))[0].receipt).shard
            opened = await engine.ask(shard, OpenSession(1, True, 0, 60_000), SessionRef)
            with pytest.raises(Invalid, match="refilled"):
                await engine.ask(shard, GrantCredit(opened.claim, 1), Granted)
            wrong = msgspec.structs.replace(opened.claim, number=7)
            assert await engine.ask(shard, CloseSession(wrong, 0), int) == 0
            assert server.app.quotas.held("ada", "in_flight", 0) == 2
            assert len(await queue.lease(10)) == 1
            with pytest.raises(Exhausted):
                await queue.lease(1)
            engine_of(server.millrace).tell(shard, CloseSession(opened.claim, 0))
            assert len(await queue.lease(10)) == 1, "whoever has ended it"

    asyncio.run(main())


def test_a_front_end_asks_its_engine_whether_sessions_have_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with millrace.open(tmp_path, settings=SMALL) as m, front(tmp_path, m) as guest:
            await m.queue("orders")
            engine, quotas = engine_of(guest), Quotas()
            found = await engine.find_queue("default", "orders")
            assert found is not None
            shard, holding = found.shards[0], InFlightQuota(engine, quotas)
            ada = Principal("ada", (), quota=Quota(in_flight=3))
            call = Submit(shard, 0, OpenSession(5, True, 0, 60_000))
            opened = await holding.answer(ada, call, partial(ask, engine))
            assert isinstance(opened, SessionRef)
            assert opened.credit == 3
            with pytest.raises(Exhausted):
                await holding.reserve(ada, "in_flight", 1)
            await engine.ask(shard, CloseSession(opened.claim, 0), int)
            assert (await holding.reserve(ada, "in_flight", 9)).count == 3

    asyncio.run(main())


def test_several_processes_share_what_may_be_had() -> None:
    ada = Principal("ada", (), quota=Quota(requests=8, bytes=80, in_flight=6, pins=1))
    shares = [Quotas(shares=4) for _ in range(4)]
    got = 0
    for quotas in shares:
        reserved = quotas.reserve(ada, "in_flight", 100, 0)
        got += reserved.count
        assert quotas.reserve(ada, "pins", 1, 0).count == 1, "each at least one"
    assert 6 <= got <= 8
    taken = 0
    for quotas in shares:
        for _ in range(100):
            try:
                quotas.take(ada, 0)
                taken += 1
            except Exhausted:
                break
    assert taken == 16, "twice the rate after a pause, over all of them"


def test_bytes_of_answers_count(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await filled(server)
            server.app.quotas.configure(Quota(bytes=2000))
            arrow = {"accept": "application/vnd.apache.arrow.stream"}
            for headers in ({}, arrow):
                server.app.quotas._rates.clear()
                path = f"{ORDERS}/rows"
                answers = [
                    await server.ask("GET", path, role="bob", headers=headers) for _ in range(20)
                ]
                refused = [answer for answer in answers if answer.status != 200]
                assert refused
                assert (refused[0].status, refused[0].json["field"]) == (429, "bytes")

    asyncio.run(main())


def test_an_engine_that_cannot_say_lifts_no_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = EmbeddedEngine.ask

    async def busy(
        engine: EmbeddedEngine, shard: ShardId, command: Command, kind: type, *, wait_ms: int = 0
    ) -> object:
        if isinstance(command, Explain):
            raise Full("no room", field="inbox")
        return await ask(engine, shard, command, kind, wait_ms=wait_ms)

    async def main() -> None:
        async with served(tmp_path) as server:
            await filled(server)
            leased = await server.ask("POST", f"{ORDERS}/leases", {"count": 3}, role="ada")
            assert len(leased.items("messages")) == 3
            monkeypatch.setattr(EmbeddedEngine, "ask", busy)
            refused = await server.ask("POST", f"{ORDERS}/leases", {"count": 3}, role="ada")
            assert refused.status == 429

    asyncio.run(main())


def test_what_went_with_its_queue_counts_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await filled(server)
            await server.ask("POST", f"{ORDERS}/leases", {"count": 3}, role="ada")
            await server.millrace.delete_queue("orders")
            await server.millrace.queue("orders")
            await filled(server)
            leased = await server.ask("POST", f"{ORDERS}/leases", {"count": 3}, role="ada")
            assert len(leased.items("messages")) == 3

    asyncio.run(main())


def test_sec_13_sessions_of_one_user_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            server.app.quotas.configure(Quota(sessions=2))
            at = f"{ORDERS}/sessions"

            async def opened(credit: int = 1) -> Answer:
                return await server.ask("POST", at, {"credit": credit}, role="ada")

            made = [await opened() for _ in range(3)]
            assert [answer.status for answer in made] == [201, 201, 429]
            assert (made[2].json["field"], made[2].json["limit"]) == ("sessions", 2)
            closed = await server.ask("DELETE", f"{at}/{made[0].text('session')}", role="ada")
            assert closed.status == 200
            # One that is not opened after all takes no place.
            assert [(await opened(credit=-1)).status for _ in range(3)] == [400] * 3
            assert [(await opened()).status for _ in range(2)] == [201, 429]

    asyncio.run(main())


def test_sec_13_sessions_of_programs_are_bounded(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            server.app.quotas.configure(Quota(sessions=2))
            url = f"http://127.0.0.1:{server.port}"
            async with millrace.connect(url, token="ada") as m:
                queue = await m.find("orders")
                one, two = queue.session(credit=1), queue.session(credit=1)
                await one.open()
                await two.open()
                with pytest.raises(Exhausted) as caught:
                    await queue.session(credit=1).open()
                assert (caught.value.field, caught.value.limit) == ("sessions", 2)
                await one.close()
                three = queue.session(credit=1)
                await three.open()
                # One that ended without a word is found out.
                await server.millrace.delete_queue("orders")
                await server.millrace.queue("orders")
                four = (await m.find("orders")).session(credit=1)
                await four.open()
                await four.close()

    asyncio.run(main())
