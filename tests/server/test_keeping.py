"""Quotas, the audit and the book, as clients meet them who speak in calls."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import millrace
from millrace import Millrace
from millrace.client.millrace import engine_of
from millrace.errors import Denied, Exhausted, Invalid
from millrace.server.access import Quota, User
from millrace.server.audit import Actor
from millrace.server.book import Book
from millrace.server.keeping import ACTS, Keeping
from millrace.server.quota import Quotas
from millrace.server.verbs import VERB_OF
from tests.client.harness import eventually, opened, run
from tests.server.calls_site import served

RULES = {"ada": ("allow publish,work,read,manage default/*",), "root": ("allow * */*",)}
BY = Actor("root")


@asynccontextmanager
async def both(folder: Path) -> AsyncIterator[tuple[Millrace, Millrace]]:
    """The queues in this process, and the same ones through a server, as `ada`."""
    async with opened(folder) as m:
        book = await Book.open(m)
        await book.add_user(User("ada"), BY)
        keeping = Keeping(book, Quotas(Quota(queues=2, cursors=1)))
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
        if note["who"] == "ada"
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
                ("configure_queue", "default/orders", "failed"),
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
            with pytest.raises(Exhausted) as caught:
                await ada.queue("b")
            assert (caught.value.field, caught.value.limit) == ("queues", 2)
            assert await m.queues() == ["a", "there"]
            await ada.delete_topic("a")
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
            here, there = await Book.open(m), await Book.open(far, follower="far")
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
                await Book.open(ada)
            await there.close()
            await here.close()

    run(main())
