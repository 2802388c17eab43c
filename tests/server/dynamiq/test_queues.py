"""Queues by Dynamiq's routes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millrace import limits
from tests.server.dynamiq.harness import MAIL, QUEUES, error, put, take, text_error, value
from tests.server.rest.harness import served

DEFAULTS = {
    "VisibilityTimeout": 30,
    "MinPartitions": 1,
    "MaxPartitions": 10,
    "MaxPartitionAge": 432000,
    "CompressedMessages": False,
    "partitions": 1,
}


def test_a_queue_is_made_once_listed_described_and_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            assert value(await server.ask("PUT", MAIL)) == (201, "created")
            status, text = error(await server.ask("PUT", MAIL))
            assert status == 422
            assert text == "queue 'mail' is there already; PATCH changes its settings"
            assert value(await server.ask("GET", QUEUES)) == (200, {"queues": ["mail", "orders"]})
            described = await server.ask("GET", MAIL)
            assert value(described) == (200, DEFAULTS)
            assert b'"VisibilityTimeout":30,' in described.body
            assert value(await server.ask("DELETE", MAIL)) == (200, {"Deleted": True})
            assert error(await server.ask("DELETE", MAIL))[0] == 404
            assert text_error(await server.ask("GET", MAIL))[0] == 404
            assert error(await server.ask("PATCH", MAIL, {}))[0] == 404

    asyncio.run(main())


def test_two_who_make_a_queue_at_once_are_not_both_told_that_they_did(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            answers = await asyncio.gather(*(server.ask("PUT", MAIL) for _ in range(8)))
            assert sorted(one.status for one in answers) == [201, *[422] * 7]

    asyncio.run(main())


def test_deleting_a_queue_ends_its_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            known = await put(server, b"old")
            assert (await server.ask("DELETE", MAIL)).status == 200
            assert (await server.ask("PUT", MAIL)).status == 201
            assert await take(server) == []
            assert (await server.ask("GET", f"{MAIL}/message/{known}")).status == 404

    asyncio.run(main())


def test_d5_settings_are_changed_one_by_one_and_hold_at_once_and_for_good(tmp_path: Path) -> None:
    changes = {
        "visibility_timeout": ("VisibilityTimeout", 2.5),
        "max_partitions": ("MaxPartitions", 40),
        "min_partitions": ("MinPartitions", 20),
        "max_partition_age": ("MaxPartitionAge", 60),
        "compressed_messages": ("CompressedMessages", True),
    }

    async def main() -> None:
        expected: dict[str, object] = dict(DEFAULTS)
        async with served(tmp_path) as server:
            await server.ask("PUT", MAIL)
            for name, (shown, changed) in changes.items():
                told = {name: changed, "visibility_timeout": None} | {name: changed}
                assert value(await server.ask("PATCH", MAIL, told)) == (200, "ok")
                expected[shown] = changed
                if name == "min_partitions":
                    expected["partitions"] = 20
                assert value(await server.ask("GET", MAIL)) == (200, expected)
            assert value(await server.ask("PATCH", MAIL, b"", type="text/plain")) == (200, "ok")
        async with served(tmp_path) as server:
            assert value(await server.ask("GET", MAIL)) == (200, expected)
            off = {"compressed_messages": False, "min_partitions": 1, "max_partitions": 1}
            assert value(await server.ask("PATCH", MAIL, off)) == (200, "ok")
            assert value(await server.ask("GET", MAIL)) == (
                200,
                {**expected, "MinPartitions": 1, "MaxPartitions": 1, "partitions": 1}
                | {"CompressedMessages": False},
            )

    asyncio.run(main())


def test_settings_may_be_sent_when_a_queue_is_made(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            told = b'{"visibility_timeout": 5, "min_partitions": 3}'
            made = await server.ask("PUT", MAIL, told, type="application/x-www-form-urlencoded")
            assert value(made) == (201, "created")
            expected = {**DEFAULTS, "VisibilityTimeout": 5, "MinPartitions": 3, "partitions": 3}
            assert value(await server.ask("GET", MAIL)) == (200, expected)

    asyncio.run(main())


REFUSED = (
    ({"visibility_timeout": 0}, "visibility_timeout is 0, not a number of seconds above"),
    ({"visibility_timeout": -1}, "visibility_timeout is -1, not"),
    ({"visibility_timeout": "5"}, "visibility_timeout: "),
    ({"visibility_timeout": 10**9}, f"up to {limits.LEASE_MS_MAX // 1000} s are allowed"),
    ({"min_partitions": 0}, "min_partitions is 0, not"),
    ({"min_partitions": 11}, "min_partitions is 11, above max_partitions, which is 10"),
    ({"max_partitions": 0}, "max_partitions is 0, not"),
    ({"max_partitions": 4_097}, "max_partitions is 4097, up to 4096 is allowed"),
    ({"max_partition_age": -1}, "max_partition_age is -1"),
    ({"max_partition_age": 10**12}, "max_partition_age is "),
    ({"compressed_messages": 1}, "compressed_messages: "),
    ({"visibilty_timeout": 1}, "`visibilty_timeout`"),
    (b"[]", "object"),
    (b"{", "no JSON"),
    (b"\xff", "body"),
)


def test_settings_that_no_queue_takes_are_refused_by_their_names(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for told, words in REFUSED:
                status, text = error(await server.ask("PUT", MAIL, told))
                assert (status, words in text) == (422, True), text
            assert (await server.ask("GET", MAIL)).status == 404
            await server.ask("PUT", MAIL)
            for told, words in REFUSED:
                status, text = error(await server.ask("PATCH", MAIL, told))
                assert (status, words in text) == (422, True), text
            assert value(await server.ask("GET", MAIL)) == (200, DEFAULTS)

    asyncio.run(main())


def test_what_stands_behind_a_question_mark_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            for method in ("PUT", "PATCH", "DELETE"):
                assert error(await server.ask(method, f"{MAIL}?x=1"))[0] == 422
            assert text_error(await server.ask("GET", f"{MAIL}?x=1"))[0] == 422

    asyncio.run(main())


def test_a_queue_without_partitions_is_not_touched(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            orders = await server.millrace.find("orders")
            await orders.publish(b"x")
            before = await orders.stats(), await orders.spec()
            await server.ask("PUT", "/v1/topics/news")
            for method, path in (
                ("PUT", "/v1/queues/orders"),
                ("PATCH", "/v1/queues/orders"),
                ("DELETE", "/v1/queues/orders"),
                ("PUT", "/v1/queues/orders/message"),
                ("GET", "/v1/queues/orders/message/1"),
                ("DELETE", "/v1/queues/orders/message/1"),
                ("DELETE", "/v1/queues/orders/messages/1,2"),
                ("PUT", "/v1/topics/news/queues/orders"),
            ):
                status, text = error(await server.ask(method, path))
                assert (status, "orders" in text) == (422, True), (method, path)
            for path in ("/v1/queues/orders", "/v1/queues/orders/messages/1"):
                status, text = text_error(await server.ask("GET", path))
                assert (status, "has no partitions" in text) == (422, True)
            assert (await orders.stats(), await orders.spec()) == before

    asyncio.run(main())


def test_a_queue_of_another_kind_is_forgotten_with_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as server:
            own = "/v1/spaces/default/queues/orders"
            assert (await server.ask("POST", f"{own}/leases", {})).status == 200
            assert (await server.ask("DELETE", own)).status == 200
            assert (await server.ask("PUT", f"{QUEUES}/orders")).status == 201
            known = await put(server, b"x", path=f"{QUEUES}/orders")
            assert (await server.ask("GET", f"{QUEUES}/orders/message/{known}")).status == 200

    asyncio.run(main())
