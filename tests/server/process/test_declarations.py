"""Queues, topics and users that the settings declare, on a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace import Millrace
from millrace.errors import Invalid
from millrace.server.auth.access import digest_of, make_token
from millrace.server.auth.audit import Actor
from millrace.server.auth.store import UserStore
from millrace.server.process.declarations import declare_queues, declare_topics, declare_users
from millrace.server.process.server_settings import ServerSettings, load
from tests.client.harness import opened, run

TOKEN = make_token(bytes(32))
OTHER = make_token(b"\1" * 32)


def settings_of(tmp_path: Path, text: str) -> ServerSettings:
    path = tmp_path / "millrace.toml"
    path.write_text(text)
    return load(path).settings


async def declare(m: Millrace, settings: ServerSettings) -> UserStore:
    await declare_queues(m, settings.queues)
    await declare_topics(m, settings.topics)
    book = await UserStore.open(m, follower=None)
    await declare_users(book, settings.users)
    return book


def test_what_is_declared_is_made_and_stays(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        f"""
        [queues.orders]
        keyed = true
        shards = 2
        dead_letter = "dead"
        [queues.dead]
        [queues."shop/baskets"]
        [topics.news]
        max_lag = 7
        subscribe = [{{ queue = "orders", filter = {{ kind = ["sale"] }} }}]
        [users.ada]
        rules = ["allow read */*"]
        tokens = ["sha256:{digest_of(TOKEN).hex()}"]
        """,
    )

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            for _ in range(2):
                book = await declare(m, settings)
                orders = await m.find("orders")
                spec = await orders.spec()
                assert (spec.keyed, spec.dead_letter) == (True, "default/dead")
                assert len(orders.shards.ids) == 2
                assert await m.queues(space="shop") == ["baskets"]
                state = await (await m.find_topic("news")).describe()
                assert state.max_lag == 7
                assert [one.queue for one in state.subscriptions] == ["default/orders"]
                found = book.roll.who(TOKEN, 1)
                assert found is not None
                assert found.name == "ada"
                assert len(book.roll.tokens("ada")) == 1

    run(main())


def test_what_has_changed_is_set_and_what_is_not_named_left_alone(tmp_path: Path) -> None:
    first = f"""
        [queues.orders]
        ttl = 60
        [users.ada]
        rules = ["allow read */*"]
        tokens = ["sha256:{digest_of(TOKEN).hex()}"]
        [users.bob]
    """
    second = f"""
        [queues.orders]
        delay = 5
        [users.ada]
        rules = ["allow work */*"]
        tokens = ["sha256:{digest_of(OTHER).hex()}"]
    """

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            book = await declare(m, settings_of(tmp_path, first))
            _, by_hand = await book.new_token("ada", "laptop", _by())
            book = await declare(m, settings_of(tmp_path, second))
            spec = await (await m.find("orders")).spec()
            assert (spec.ttl_ms, spec.delay_ms) == (60_000, 5_000)
            ada = book.roll.user("ada")
            assert ada is not None
            assert [str(rule) for rule in ada.rules] == ["allow work */*"]
            assert book.roll.who(TOKEN, 1) is None, "the file no longer has it"
            assert book.roll.who(OTHER, 1) is not None
            assert book.roll.who(by_hand, 1) is not None
            assert book.roll.user("bob") is not None

    run(main())


def test_queues_are_made_after_those_beside_which_they_are_placed(tmp_path: Path) -> None:
    text = """
        [queues.billed]
        beside = "shipped"
        [queues.shipped]
        beside = "orders"
        [queues.orders]
    """

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            for _ in range(2):
                await declare(m, settings_of(tmp_path, text))
            for name in ("shipped", "billed"):
                assert (await m.find(name)).shards.placed_by == "default/orders"

    run(main())


def _by() -> Actor:
    return Actor("root")


def test_what_cannot_be_so_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            await m.queue("orders")
            for text, said in (
                ("[queues.orders]\nkeyed = true", r", line 2: queues\.orders: .*keyed"),
                ("[queues.orders]\nshards = 3", r", line 2: queues\.orders: .*shards"),
                ("[queues.orders]\ndead_letter = 'x'", r", line 2: queues\.orders: .*/x'"),
                ("[queues.a]\nbeside = 'x'", r", line 2: queues\.a: .*/x'"),
                ("[queues.a]\nbeside = 'a'", r", line 2: queues\.a: .*/a'"),
                ("[queues.a]\nbeside = 5", r", line 2: queues\.a: .*beside"),
                ("[topics.news]\nsubscribe = ['x']", r", line [12]: topics\.news: .*'.*x'"),
            ):
                with pytest.raises(Invalid, match=rf"millrace\.toml{said}"):
                    await declare(m, settings_of(tmp_path, text))

    run(main())
