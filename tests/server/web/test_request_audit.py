"""Quotas and the audit, as requests meet them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import millrace
from millrace.client.redrive import Redrive
from millrace.errors import Denied, MillraceError
from millrace.server.auth.access import (
    Principal,
    Quota,
    User,
    parse_rule,
)
from millrace.server.auth.audit import Actor
from millrace.server.auth.store import UserStore
from millrace.server.dynamiq.api_protocol import DynamiqApi
from millrace.server.http.listener import Listener
from millrace.server.process.route_table import ROUTES as ALL_ROUTES
from millrace.server.quota.quotas import Quotas
from millrace.server.rest.routes import ROUTES
from millrace.server.web.api_protocol import ApiProtocol, FaceName
from millrace.server.web.app import App
from millrace.server.web.queue_cache import QueueCache
from millrace.server.web.request_audit import is_act, made_by
from tests.client.harness import SMALL, eventually, run
from tests.server.rest.harness import Answer, Door, Served

QUEUES = "/v1/spaces/default/queues"
PARAMS = {"space": "s", "queue": "q", "topic": "t", "cursor": "c", "subscription": "u"}
BOUNDED = Quota(queues=2, topics=1, cursors=1, in_flight=3, pins=1)
USERS = (
    User("ada", (parse_rule("allow publish,work,read,manage default/*"),), BOUNDED),
    User("bob", (parse_rule("allow read default/*"),)),
)


class Named:
    """Knows users by their names."""

    def __init__(self, book: UserStore) -> None:
        self._book = book

    def admit(self, headers: dict[str, str], peer: str) -> Principal | MillraceError:
        return self.who(headers, peer)

    def version(self) -> int:
        return 0

    def who(self, headers: dict[str, str], peer: str) -> Principal:
        found = self._book.roll.principal(headers["authorization"].removeprefix("Bearer "))
        assert found is not None
        return found.at(peer)


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Served]:
    async with millrace.open(folder, settings=SMALL) as m:
        await m.queue("orders")
        book = await UserStore.open(m)
        for user in USERS:
            await book.add_user(user, Actor("root"))
        named = Named(book)
        faces: dict[FaceName, ApiProtocol] = {"dynamiq": DynamiqApi(named)}
        app = App(QueueCache(m), named, ALL_ROUTES, quotas=Quotas(), book=book, faces=faces)
        listener = Listener(app.site)
        _, port = await listener.listen("127.0.0.1", 0)
        try:
            yield Served(port, m, app, Door())
        finally:
            await listener.stop(5)
            await app.finish()
            await book.close()


async def notes(site: Served) -> list[tuple[object, ...]]:
    rows = await (await site.millrace.find("audit", space="system")).peek(1000)
    found = [json.loads(row.body or b"") for row in rows]
    return [
        (note["who"], note["act"], note["target"], note.get("outcome", "done"))
        for note in found
        if note["who"] != "root" and note.get("outcome") != "begun"
    ]


def test_queues_are_counted_for_who_made_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            # What was there before is nobody's.
            assert (await site.ask("PUT", f"{QUEUES}/orders", {}, role="ada")).status == 200
            for name in ("a", "b", "a"):
                assert (await site.ask("PUT", f"{QUEUES}/{name}", {}, role="ada")).status < 300
            refused = await site.ask("PUT", f"{QUEUES}/c", {}, role="ada")
            assert refused.status == 429
            assert (refused.json["field"], refused.json["limit"]) == ("queues", 2)
            assert int(refused.headers["retry-after"]) > 0
            assert await site.millrace.queues() == ["a", "b", "orders"]
            assert (await site.ask("DELETE", f"{QUEUES}/a", role="ada")).status == 200
            assert (await site.ask("PUT", f"{QUEUES}/c", {}, role="ada")).status == 201

    run(main())


def test_what_was_not_made_is_not_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            for _ in range(3):
                wrong = await site.ask("PUT", f"{QUEUES}/a", {"order": "odd"}, role="ada")
                assert wrong.status == 400
            for name in ("b", "c"):
                assert (await site.ask("PUT", f"{QUEUES}/{name}", {}, role="ada")).status == 201

    run(main())


def test_cursors_and_snapshots_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            cursors, snapshots = f"{QUEUES}/orders/cursors", f"{QUEUES}/orders/snapshots"
            for _ in range(2):
                assert (await site.ask("PUT", f"{cursors}/x", {}, role="ada")).status == 200
            refused = await site.ask("PUT", f"{cursors}/y", {}, role="ada")
            assert (refused.status, refused.json["field"]) == (429, "cursors")
            assert (await site.ask("DELETE", f"{cursors}/x", role="ada")).status == 200
            assert (await site.ask("PUT", f"{cursors}/y", {}, role="ada")).status == 200
            taken = await site.ask("POST", snapshots, {}, role="ada")
            assert taken.status == 201
            refused = await site.ask("POST", snapshots, {}, role="ada")
            assert (refused.status, refused.json["field"]) == (429, "pins")
            assert (await site.ask("POST", snapshots, {}, role="bob")).status == 201
            gone = await site.ask("DELETE", f"{snapshots}/{taken.json['snapshot']}", role="ada")
            assert gone.status == 200
            assert (await site.ask("POST", snapshots, {}, role="ada")).status == 201

    run(main())


def test_messages_in_flight_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            queue = await site.millrace.find("orders")
            await queue.publish_many([b"x"] * 20)
            at = f"{QUEUES}/orders"

            async def lease(count: int) -> list[str]:
                found = await site.ask("POST", f"{at}/leases", {"count": count}, role="ada")
                assert found.status == 200, found.body
                return [str(one["receipt"]) for one in found.items("messages")]

            first = await lease(2)
            second = await lease(10)
            assert (len(first), len(second)) == (2, 1), "as many as there is room for"
            refused = await site.ask("POST", f"{at}/leases", {"count": 1}, role="ada")
            assert (refused.status, refused.json["field"]) == (429, "in_flight")
            for verb, receipts in (("settle", first[:1]), ("release", second)):
                done = await site.ask("POST", f"{at}/{verb}", {"receipts": receipts}, role="ada")
                assert done.status == 200
            assert len(await lease(10)) == 2
            kept = {"receipts": first[1:], "seconds": 60}
            assert (await site.ask("POST", f"{at}/extend", kept, role="ada")).status == 200
            other = {"receipt": first[1], "body": "other"}
            replaced = await site.ask("POST", f"{at}/replace", other, role="ada")
            assert replaced.status == 200
            refused = await site.ask("POST", f"{at}/leases", {"count": 1}, role="ada")
            assert refused.status == 429
            gone = {"receipts": [replaced.json["receipt"]]}
            assert (await site.ask("POST", f"{at}/discard", gone, role="ada")).status == 200
            [last] = await lease(10)
            part = {"do": "settle", "queue": "orders", "receipts": [last]}
            told = {"parts": [part]}
            at_once = await site.ask("POST", "/v1/spaces/default/transactions", told, role="ada")
            assert at_once.status == 200, at_once.body
            assert len(await lease(10)) == 1

    run(main())


def test_credit_that_is_not_refilled_counts_until_its_messages_have_ended(tmp_path: Path) -> None:
    """Else a session that goes on for long would have used up what its user may have."""

    async def main() -> None:
        async with served(tmp_path) as site:
            queue = await site.millrace.find("orders")
            await queue.publish_many([b"x"] * 5)
            at = f"{QUEUES}/orders/sessions"
            made = await site.ask("POST", at, {"credit": 0, "refill": False}, role="ada")
            session = f"{at}/{made.text('session')}"

            async def ask(verb: str, **told: object) -> Answer:
                return await site.ask("POST", f"{session}/{verb}", told, role="ada")

            assert (await ask("grant", credit=3)).status == 200
            assert (await ask("grant", credit=1)).status == 429, "as many as there may be"
            for verb in ("settle", "release", "discard"):
                for number in range(2):
                    messages = (await ask("receive", count=1, wait=30)).items("messages")
                    done = await ask(verb, numbers=[messages[0]["number"]])
                    assert done.json["done"] == 1, (verb, number)
                    assert (await ask("grant", credit=1)).status == 200
                    assert (await ask("grant", credit=1)).status == 429
            drained = await ask("grant", credit=0, drain=True)
            assert drained.json["drained"] == 2, "one message is left"
            assert (await ask("grant", credit=2)).status == 200
            assert (await ask("grant", credit=1)).status == 429

    run(main())


def test_a_lease_call_that_finds_nothing_holds_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            for _ in range(5):
                found = await site.ask("POST", f"{QUEUES}/orders/leases", {"count": 3}, role="ada")
                assert found.items("messages") == []
                wrong = await site.ask("POST", f"{QUEUES}/orders/leases", {"count": -1}, role="ada")
                assert wrong.status == 400

    run(main())


def test_acts_are_noted_before_they_are_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            await site.ask("PUT", f"{QUEUES}/a", {}, role="ada")
            await site.ask("PUT", f"{QUEUES}/a", {}, role="ada")
            await site.ask("PATCH", f"{QUEUES}/a", {"delay": 5}, role="ada")
            await site.ask("PATCH", f"{QUEUES}/a", {"delay": -5}, role="ada")
            await site.ask("POST", f"{QUEUES}/a/messages", {"body": "x"}, role="ada")
            await site.ask("GET", f"{QUEUES}/a", role="ada")
            await site.ask("DELETE", f"{QUEUES}/a", role="ada")
            assert await notes(site) == [
                ("ada", "make_queue", "default/a", "done"),
                ("ada", "configure_queue", "default/a", "done"),
                ("ada", "configure_queue", "default/a", "refused"),
                ("ada", "delete_queue", "default/a", "done"),
            ]

    run(main())


def test_subscriptions_are_noted(tmp_path: Path) -> None:
    """They are answered by 200 also when they were made: that is no sign of one that was there."""

    async def main() -> None:
        async with served(tmp_path) as site:
            news = "/v1/spaces/default/topics/news"
            await site.ask("PUT", news, {}, role="ada")
            told = {"queue": "orders"}
            made = await site.ask("PUT", f"{news}/subscriptions/s", told, role="ada")
            assert made.status == 200
            await site.ask("DELETE", f"{news}/subscriptions/s", role="ada")
            assert await notes(site) == [
                ("ada", "make_topic", "default/news", "done"),
                ("ada", "subscribe", "default/news/s", "done"),
                ("ada", "unsubscribe", "default/news/s", "done"),
            ]

    run(main())


def test_acts_that_are_denied_are_noted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            denied = await site.ask("DELETE", f"{QUEUES}/orders", role="bob")
            assert denied.status == 403

            async def is_noted() -> bool:
                return bool(await notes(site))

            await eventually(is_noted)
            assert await notes(site) == [("bob", "delete_queue", "default/orders", "denied")]
            assert "orders" in await site.millrace.queues()

    run(main())


def test_every_route_that_makes_or_ends_something_is_counted() -> None:
    counted = {
        (route.method, route.path.rpartition("/")[2])
        for route in ROUTES.all
        if made_by(route, PARAMS)
    }
    for name in ("{queue}", "{cursor}", "{topic}", "{subscription}"):
        assert {("PUT", name), ("DELETE", name)} <= counted
    acts = {route.name for route in ROUTES.all if is_act(route)}
    assert {"make_queue", "configure_queue", "delete_queue", "purge", "rewind"} <= acts
    assert not any(is_act(route) for route in ROUTES.all if route.method == "GET")


@pytest.mark.parametrize(
    "rules", [None, ("allow read default/*",), ("allow work default/*", "deny publish */orders")]
)
@pytest.mark.parametrize("to", [None, "orders"])
def test_sec_19_a_redrive_ends_with_the_rights_of_its_user(
    tmp_path: Path, to: str | None, rules: tuple[str, ...] | None
) -> None:
    async def main() -> None:
        async with served(tmp_path) as site:
            dead = await site.millrace.queue("dead")
            orders = await site.millrace.find("orders")
            await orders.configure(dead_letter="dead")
            await orders.publish_many([b"%d" % number for number in range(20)])
            for lease in await orders.lease(20):
                await lease.discard()

            async def are_dead() -> bool:
                return (await dead.stats())["live"] == 20

            await eventually(are_dead)
            at = f"{QUEUES}/dead/redrives"
            begun = await site.ask("POST", at, {"rate": 1, "to": to}, role="ada")
            [job] = site.app.jobs.of(("default", "dead"))
            assert isinstance(job.subject, Redrive)
            redrive = job.subject

            async def has_moved() -> bool:
                return redrive.stats.moved > 0

            await eventually(has_moved)
            assert site.app.book is not None
            if rules is None:
                await site.app.book.remove_user("ada", Actor("root"))
            else:
                lesser = User("ada", tuple(map(parse_rule, rules)), BOUNDED)
                await site.app.book.set_user(lesser, Actor("root"))
            moved = redrive.stats.moved
            await job.wait(30)
            assert (job.state, begun.json["state"]) == ("failed", "running")
            assert isinstance(job.error, Denied)
            assert (redrive.stats.moved, (await orders.stats())["live"]) == (moved, moved)
            # What was taken from the queue is back in it.
            assert len(await dead.lease(100)) == 20 - moved
            await site.app.finish()
            [note] = [note for note in await notes(site) if note[1] == "redrive"]
            assert note == ("ada", "redrive", "default/dead", "denied")

    run(main())
