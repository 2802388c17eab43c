"""Quotas and the audit, as Dynamiq's routes meet them."""

from __future__ import annotations

from pathlib import Path

from tests.client.harness import run
from tests.server.dynamiq.harness import MAIL, NEWS, QUEUES, error
from tests.server.web.test_request_audit import notes, served


def test_queues_and_topics_are_counted_for_who_made_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            assert (await site.ask("PUT", MAIL, role="ada")).status == 201
            assert (await site.ask("PUT", MAIL, role="ada")).status == 422
            assert (await site.ask("PUT", NEWS, role="ada")).status == 201
            assert (await site.ask("PUT", f"{QUEUES}/fix", role="ada")).status == 201
            for path in (f"{QUEUES}/fax", f"{NEWS}-2"):
                refused = await site.ask("PUT", path, role="ada")
                assert error(refused)[0] == 429
                assert int(refused.headers["retry-after"]) > 0
            # A subscription is no queue.
            assert (await site.ask("PUT", f"{NEWS}/queues/mail", role="ada")).status == 200
            assert (await site.ask("DELETE", f"{NEWS}/queues/mail", role="ada")).status == 200
            assert (await site.ask("PUT", f"{QUEUES}/fax", role="ada")).status == 429
            assert (await site.ask("DELETE", NEWS, role="ada")).status == 200
            assert (await site.ask("PUT", f"{QUEUES}/fax", role="ada")).status == 429
            assert (await site.ask("PUT", f"{NEWS}-2", role="ada")).status == 201
            assert (await site.ask("DELETE", f"{QUEUES}/fix", role="ada")).status == 200
            assert (await site.ask("PUT", f"{QUEUES}/fax", role="ada")).status == 201
            assert (await site.ask("DELETE", MAIL, role="ada")).status == 200
            assert (await site.ask("PUT", MAIL, role="ada")).status == 201

    run(main())


def test_messages_in_flight_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            await site.ask("PUT", MAIL, {"max_partitions": 1}, role="ada")
            for _ in range(5):
                await site.ask("PUT", f"{MAIL}/message", b"x", role="ada")
            taken = await site.ask("GET", f"{MAIL}/messages/10", role="ada")
            assert taken.body.count(b'"id"') == 3, "as many as there is room for"
            refused = await site.ask("GET", f"{MAIL}/messages/10", role="ada")
            assert refused.status == 429
            ids = ",".join(part.split(b'"')[3].decode() for part in taken.body.split(b"},"))
            gone = await site.ask("DELETE", f"{MAIL}/messages/{ids}", role="ada")
            assert gone.json == {"deleted": 3}
            again = await site.ask("GET", f"{MAIL}/messages/10", role="ada")
            assert again.body.count(b'"id"') == 2

    run(main())


def test_acts_are_noted_before_they_are_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            for method, path in (
                ("PUT", MAIL),
                ("PUT", MAIL),
                ("PATCH", MAIL),
                ("PUT", NEWS),
                ("PUT", f"{NEWS}/queues/mail"),
                ("PUT", f"{NEWS}/message"),
                ("GET", f"{MAIL}/messages/1"),
                ("DELETE", f"{NEWS}/queues/mail"),
                ("DELETE", NEWS),
                ("DELETE", MAIL),
            ):
                await site.ask(method, path, role="ada")
            await site.ask("DELETE", MAIL, role="bob")
            await site.app.finish()
            assert await notes(site) == [
                ("ada", "make_queue", "default/mail", "done"),
                ("ada", "configure_queue", "default/mail", "done"),
                ("ada", "make_topic", "default/news", "done"),
                ("ada", "subscribe", "default/news/mail", "done"),
                ("ada", "unsubscribe", "default/news/mail", "done"),
                ("ada", "delete_topic", "default/news", "done"),
                ("ada", "delete_queue", "default/mail", "done"),
                ("bob", "delete_queue", "default/mail", "denied"),
            ]

    run(main())
