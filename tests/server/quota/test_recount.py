"""What users have made is counted anew when a server starts."""

from __future__ import annotations

from millrace import Millrace
from millrace.client.millrace import engine_of
from millrace.server.auth.access import Principal, Quota, User
from millrace.server.auth.audit import Actor
from millrace.server.auth.records import Kind
from millrace.server.auth.store import UserStore
from millrace.server.quota.recount import recount
from tests.client.harness import embedded

ADA = Principal("ada", ())
THERE: tuple[tuple[Kind, str], ...] = (
    ("queues", "default/orders"),
    ("queues", "default/topic:news"),
    ("cursors", "default/orders/report"),
    ("subscriptions", "default/news/all"),
)
GONE: tuple[tuple[Kind, str], ...] = (
    ("queues", "default/news"),
    ("queues", "default/topic:orders"),
    ("queues", "other/orders"),
    ("cursors", "default/orders/all"),
    ("cursors", "default/missing/report"),
    ("subscriptions", "default/news/report"),
    ("subscriptions", "default/missing/all"),
)


@embedded
async def test_sec_29_what_counts_and_is_not_there_is_forgotten(m: Millrace) -> None:
    book = await UserStore.open(m, follower=None)
    await book.add_user(User("ada"), Actor("root"))
    orders = await m.queue("orders")
    await orders.cursor("report")
    await (await m.topic("news")).subscribe(orders, name="all")
    await m.queue("of-nobody")
    for place in (*THERE, *GONE):
        assert await book.claim(ADA, Quota(), *place)
    again = await UserStore.open(m, follower=None)
    assert await recount(engine_of(m), again) == len(GONE)
    assert sorted(again.made) == sorted(THERE)
    assert await recount(engine_of(m), again) == 0
    # So it is for all who read the book after.
    assert sorted((await UserStore.open(m, follower=None)).made) == sorted(THERE)


@embedded
async def test_sec_29_what_is_in_something_goes_with_it(m: Millrace) -> None:
    book = await UserStore.open(m, follower=None)
    await book.add_user(User("ada"), Actor("root"))
    for place in THERE:
        await book.claim(ADA, Quota(), *place)
    await book.unclaim(ADA, "queues", "default/topic:news")
    assert sorted(book.made) == [("cursors", "default/orders/report"), ("queues", "default/orders")]
    await book.unclaim(ADA, "queues", "default/orders")
    assert book.made == []
