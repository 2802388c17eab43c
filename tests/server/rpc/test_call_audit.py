"""Quotas, the audit and the book, as clients meet them who speak in calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

import millrace
from millrace import Millrace
from millrace.client.millrace import engine_of
from millrace.errors import Denied, Exhausted, Full, Invalid
from millrace.server.auth.access import Quota, User
from millrace.server.auth.audit import Actor
from millrace.server.auth.store import UserStore
from millrace.server.quota.quotas import Quotas
from millrace.server.rpc.call_audit import ACTS, CallAudit
from millrace.server.rpc.call_permissions import VERB_OF
from tests.client.harness import SMALL, eventually, opened, run
from tests.server.calls_site import served

RULES = {"ada": ("allow publish,work,read,manage default/*",), "root": ("allow * */*",)}
BY = Actor("root")


@asynccontextmanager
async def both(folder: Path) -> AsyncIterator[tuple[Millrace, Millrace]]:
    """The queues in this process, and the same ones through a server, as `ada`."""
    async with opened(folder) as m:
        book = await UserStore.open(m)
        await book.add_user(User("ada"), BY)
        keeping = CallAudit(book, Quotas(Quota(queues=1, topics=1, cursors=1, subscriptions=1)))
        async with (
            served(engine_of(m), RULES, keeping=keeping) as url,
            millrace.connect(url, token="ada") as ada,
        ):
            yield m, ada
        await book.close()


async def notes(m: Millrace) -> list[tuple[object, ...]]:
    rows = await (await m.find("audit", space="system")).peek(1000)
    found = [json.loads(row.body or b"") for row in rows]
    return [
        (note["act"], note["target"], note.get("outcome", "done"))
        for note in found
        if note["who"] == "ada" and note.get("outcome") != "begun"
    ]


def test_acts_are_noted_before_they_are_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with both(tmp_path / "data") as (m, ada):
            orders = await ada.queue("orders", shards=2, retention="log")
            await ada.queue("orders", shards=2)
            await orders.publish(b"x")
            await orders.configure(keep=5)
            await orders.rewind("beginning")
            await orders.purge()
            with pytest.raises(Invalid):
                await orders.configure(keyed=True)
            with pytest.raises(Denied):
                await ada.queue("orders", space="other")
            await ada.delete_queue("orders")
            assert await notes(m) == [
                ("make_queue", "default/orders", "done"),
                ("configure_queue", "default/orders", "done"),
                ("rewind", "default/orders", "done"),
                ("purge", "default/orders", "done"),
                ("configure_queue", "default/orders", "refused"),
                ("delete_queue", "default/orders", "done"),
            ]

    run(main())


def test_what_is_made_is_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with both(tmp_path / "data") as (m, ada):
            await m.queue("there")
            await ada.queue("there", delay=0)
            await ada.queue("a")
            await ada.topic("a")
            for make, field in ((ada.queue, "queues"), (ada.topic, "topics")):
                with pytest.raises(Exhausted) as caught:
                    await make("b")
                assert (caught.value.field, caught.value.limit) == (field, 1)
            assert (await m.queues(), await m.topics()) == (["a", "there"], ["a"])
            topic = await ada.find_topic("a")
            for _ in range(2):
                await topic.subscribe("a", name="s")
            with pytest.raises(Exhausted) as caught:
                await topic.subscribe("there", name="t")
            assert (caught.value.field, caught.value.limit) == ("subscriptions", 1)
            await topic.unsubscribe("s")
            await topic.subscribe("there", name="t")
            await ada.delete_topic("a")
            await (await ada.topic("b")).subscribe("there", name="t")
            await ada.delete_queue("a")
            queue = await ada.queue("b", shards=3)
            await queue.cursor("x")
            cursor = await queue.cursor("x")
            with pytest.raises(Exhausted):
                await queue.cursor("y")
            assert await queue.cursors() == {"x": 0}
            await cursor.delete()
            await queue.cursor("y")

    run(main())


def test_every_command_that_manages_is_an_act() -> None:
    managing = {kind for kind, verb in VERB_OF.items() if verb in ("manage", "admin")}
    assert managing <= set(ACTS)


def test_a_book_is_kept_through_a_server_as_well(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            opened(tmp_path / "data") as m,
            served(engine_of(m), RULES) as url,
            millrace.connect(url, token="root") as far,
            millrace.connect(url, token="ada") as ada,
        ):
            here, there = await UserStore.open(m), await UserStore.open(far, follower="far")
            await there.add_user(User("bob"), BY)
            token, text = await there.new_token("bob", "laptop", BY)
            assert there.roll.who(text, 1) is not None

            async def is_known() -> bool:
                return here.roll.who(text, 1) is not None

            async def is_revoked() -> bool:
                return there.roll.who(text, 1) is None

            await eventually(is_known)
            await here.revoke_token(token, BY)
            await eventually(is_revoked)
            with pytest.raises(Denied):
                await UserStore.open(ada)
            await there.close()
            await here.close()

    run(main())


def test_below_a_watermark_an_act_that_cannot_be_noted_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / "data"
        async with opened(folder) as m:
            book = await UserStore.open(m)
            for name in ("ada", "bob", "eve"):
                await book.add_user(User(name), BY)
            await m.queue("orders")
            await book.close()
        async with opened(folder, settings=replace(SMALL, memory_high=1)) as m:
            book = await UserStore.open(m)
            rules = {"ada": RULES["ada"], "bob": RULES["ada"], "eve": ("allow read default/*",)}
            keeping = CallAudit(book, Quotas())
            async with served(engine_of(m), rules, keeping=keeping) as url:
                # Whoever may do nothing uses up none of it.
                async with millrace.connect(url, token="eve") as eve:
                    orders = await eve.find("orders")
                    for _ in range(20):
                        with pytest.raises(Denied):
                            await orders.purge()
                before = await notes(m)
                async with millrace.connect(url, token="ada") as ada:
                    orders = await ada.find("orders")
                    with pytest.raises(Full):
                        await orders.publish(b"x")
                    purges = 0
                    with suppress(Full):
                        while purges < 1_000:
                            await orders.purge()
                            purges += 1
                    assert 20 < purges < 1_000
                    with pytest.raises(Full):
                        await orders.configure(delay=5)
                    assert (await orders.spec()).delay_ms == 0
                    # What was done is on record, with its end.
                    found = (await notes(m))[len(before) :]
                    assert found == [("purge", "default/orders", "done")] * purges
                async with millrace.connect(url, token="bob") as bob:
                    # One user does not use up the share of all others.
                    await (await bob.find("orders")).configure(delay=5)
                    assert (await (await bob.find("orders")).spec()).delay_ms == 5_000
                    await book.remove_user("eve", BY)
            await book.close()

    run(main())
