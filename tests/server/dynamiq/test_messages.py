"""Messages by Dynamiq's routes."""

from __future__ import annotations

import asyncio
import json
import socket
from base64 import b64encode
from pathlib import Path

import pytest

from millrace import limits
from millrace.core.format.message_id import IDS
from millrace.core.state.partition_state import slice_of
from millrace.server.counters import LeaseCounters
from millrace.server.http.listener import ListenAddress
from millrace.server.process.metrics_export import Statsd
from tests.server.dynamiq.harness import MAIL, NEWS, QUEUES, error, put, take, text_error, value
from tests.server.rest.harness import served, until_told


def test_d4_messages_are_put_taken_found_and_deleted_by_their_ids(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            ids = [await put(server, f"letter {number}".encode()) for number in range(5)]
            assert len({*ids}) == 5
            assert all(0 <= int(one) < IDS for one in ids)
            message = {"id": ids[2], "body": "letter 2"}
            found = await server.ask("GET", f"{MAIL}/message/{ids[2]}")
            assert value(found) == (200, {"messages": [message]})
            taken = await take(server)
            sent = [{"id": one, "body": f"letter {number}"} for number, one in enumerate(ids)]
            assert taken == sent
            assert value(await server.ask("DELETE", f"{MAIL}/message/{ids[0]}")) == (200, True)
            assert value(await server.ask("DELETE", f"{MAIL}/message/{ids[0]}")) == (200, False)
            several = ",".join([*ids[:3], ids[1], "1", "x", ""])
            assert value(await server.ask("DELETE", f"{MAIL}/messages/{several}")) == (
                200,
                {"deleted": 2},
            )
            gone = await server.ask("GET", f"{MAIL}/message/{ids[0]}")
            assert error(gone) == (404, f"there is no message {ids[0]!r} (any more)")
            assert (await server.millrace.find("mail")).shards.key
            stats = await (await server.millrace.find("mail")).stats()
            assert (stats["published"], stats["settled"], stats["live"]) == (5, 3, 2)

    asyncio.run(main())


def test_d2_ten_workers_with_default_settings_all_get_a_batch(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            # Ids are random, and the smallest of ten partitions has a sixteenth of them: one of
            # 50 waiting messages would be empty in every 25th run, of 350 never.
            ids = [await put(server, b"%d" % number) for number in range(400)]
            batches = [await take(server, 5) for _ in range(10)]
            assert all(batches)
            taken = [one["id"] for batch in batches for one in batch]
            assert len({*taken}) == len(taken)
            assert {*taken} < {*ids}
            told = await server.ask("GET", MAIL)
            assert told.json["partitions"] == 10
            # What a worker deletes makes room for the others, until all is done.
            while taken:
                await server.ask("DELETE", f"{MAIL}/messages/{','.join(taken)}")
                taken = [one["id"] for _ in range(10) for one in await take(server, 5)]
            stats = await (await server.millrace.find("mail")).stats()
            assert (stats["settled"], stats["live"]) == (400, 0)

    asyncio.run(main())


def test_a_queue_has_a_thousand_partitions(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            made = await server.ask(
                "PUT", MAIL, b'{"min_partitions": 1000, "max_partitions": 1000}'
            )
            assert made.status == 201
            assert (await server.ask("GET", MAIL)).json["partitions"] == 1000
            ids = [await put(server, b"x") for _ in range(20)]
            parts = [slice_of(int(one), 1000) for one in ids]
            # One batch of each partition that has something, and none of a locked one.
            found = [await take(server) for _ in range(len({*parts}) + 1)]
            assert found.pop() == []
            assert sorted(one["id"] for batch in found for one in batch) == sorted(ids)

    asyncio.run(main())


def test_as_many_are_deleted_as_an_address_has_room_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            queue = await server.millrace.find("mail")
            ids = [str(one) for one in await queue.publish_many([b"x"] * 401)]
            longest = [str(IDS - 1 - number) for number in range(450 - len(ids))]
            refused = await server.ask("DELETE", f"{MAIL}/messages/{','.join(ids + longest)}")
            assert refused.status == 414
            gone = await server.ask("DELETE", f"{MAIL}/messages/{','.join(ids[:400])}")
            assert value(gone) == (200, {"deleted": 400})
            assert [one["id"] for one in await take(server)] == ids[400:]

    asyncio.run(main())


def test_what_is_no_id_is_of_no_message(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            for text in ("x", "-1", str(IDS), "9" * 40, "1.5", "%C2%B2", "1,2"):
                assert error(await server.ask("GET", f"{MAIL}/message/{text}"))[0] == 404
                path = f"{MAIL}/message/{text}"
                assert value(await server.ask("DELETE", path)) == (200, False), text

    asyncio.run(main())


def test_where_there_is_no_queue_nothing_is_made_and_nothing_answered_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            assert error(await server.ask("PUT", f"{MAIL}/message", b"x"))[0] == 404
            assert error(await server.ask("GET", f"{MAIL}/message/1"))[0] == 404
            assert error(await server.ask("DELETE", f"{MAIL}/message/1"))[0] == 404
            assert error(await server.ask("DELETE", f"{MAIL}/messages/1,2"))[0] == 404
            status, text = text_error(await server.ask("GET", f"{MAIL}/messages/1"))
            assert (status, text) == (404, "there is no queue 'mail' in 'default'")
            assert await server.millrace.queues() == ["orders"]
            near = text_error(await server.ask("GET", f"{QUEUES}/order/messages/1"))[1]
            assert near.endswith("; did you mean 'orders'?")

    asyncio.run(main())


def test_a_batch_is_of_at_least_one_and_never_more_than_there_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            for count in ("0", "-1", "x", "1.5", str(IDS), "9" * 30):
                status, text = text_error(await server.ask("GET", f"{MAIL}/messages/{count}"))
                assert (status, "the size of a batch is" in text) == (422, True)
            assert await take(server) == []
            await put(server, b"x")
            assert (await server.ask("HEAD", f"{MAIL}/messages/1")).status == 422
            assert len(await take(server, IDS - 1)) == 1

    asyncio.run(main())


def test_d3_a_batch_locks_its_partition_and_comes_again_unless_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL, {"max_partitions": 1, "visibility_timeout": 600})
            assert await take(server) == []
            first = await put(server, b"first")
            assert await take(server) == [{"id": first, "body": "first"}]
            second = await put(server, b"second")
            assert await take(server) == []
            assert value(await server.ask("DELETE", f"{MAIL}/message/{first}")) == (200, True)
            assert [one["id"] for one in await take(server)] == [second]
            assert value(await server.ask("DELETE", f"{MAIL}/message/{second}")) == (200, True)
            await server.ask("PATCH", MAIL, {"visibility_timeout": 0.001})
            third = await put(server, b"third")
            for _ in range(3):

                async def comes() -> bool:
                    return [one["id"] for one in await take(server)] == [third]

                await until_told(comes)

    asyncio.run(main())


def test_d2_each_partition_is_served_once_before_any_twice(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL, {"min_partitions": 4, "max_partitions": 4})
            ids = {await put(server, b"%d" % number) for number in range(60)}
            slices = []
            for _ in range(4):
                batch = await take(server, 1000)
                [part] = {int(one["id"]) * 4 // IDS for one in batch}
                slices.append(part)
                ids -= {one["id"] for one in batch}
            assert sorted(slices) == [0, 1, 2, 3]
            assert not ids
            assert await take(server) == []

    asyncio.run(main())


def test_a_body_that_is_no_text_comes_back_as_it_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            bodies = [b"\xff\x00a", b"", "grün".encode(), b'{"a": 1}']
            ids = [await put(server, body) for body in bodies]
            taken = await take(server)
            assert taken == [
                {"id": ids[0], "body": "\ufffd\0a", "body_base64": b64encode(bodies[0]).decode()},
                {"id": ids[1], "body": ""},
                {"id": ids[2], "body": "grün"},
                {"id": ids[3], "body": '{"a": 1}'},
            ]
            found = await server.ask("GET", f"{MAIL}/message/{ids[0]}")
            assert json.loads(found.body) == {"messages": taken[:1]}

    asyncio.run(main())


def test_a_body_that_no_queue_takes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            await server.ask("PUT", NEWS)
            for path in (MAIL, NEWS):
                status, text = error(await server.ask("PUT", f"{path}/message", b"x" * 101))
                assert (status, "100" in text) == (413, True), text
            assert await take(server) == []

    monkeypatch.setattr(limits, "BODY_BYTES_MAX", 100)
    asyncio.run(main())


def test_what_was_taken_is_not_kept_by_those_in_between(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            answer = await server.ask("GET", f"{MAIL}/messages/1")
            assert answer.headers["cache-control"] == "no-store"

    asyncio.run(main())


def test_d8_statsd_is_told_of_what_these_routes_do(tmp_path: Path) -> None:
    async def main(receiver: socket.socket) -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)

            async def find() -> LeaseCounters:
                return server.app.handed

            statsd = Statsd(server.millrace, find, ListenAddress(*receiver.getsockname()))
            await statsd.start()
            await statsd.tell()
            ids = [await put(server, b"x") for _ in range(4)]
            assert len(await take(server, 8)) == 4
            await server.ask("DELETE", f"{MAIL}/messages/{ids[0]},{ids[1]}")
            await server.ask("DELETE", f"{MAIL}/message/{ids[2]}")
            await statsd.stop()
            packets = b""
            while True:
                try:
                    packets += receiver.recv(65536) + b"\n"
                except BlockingIOError:
                    break
            # What is told last counts.
            told = dict(line.split(":") for line in packets.decode().splitlines())
            prefix = "millrace.default.mail."
            assert {name.removeprefix(prefix): told[name] for name in told if prefix in name} == {
                "sent": "4|c",
                "received": "4|c",
                "deleted": "3|c",
                "depth": "1|g",
                "approximate_depth": "1|g",
                "fill": "50|g",
            }

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        receiver.setblocking(False)
        asyncio.run(main(receiver))
