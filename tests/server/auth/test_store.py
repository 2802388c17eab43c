"""The book of users, on a real engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import pytest

from millrace import Millrace, limits
from millrace.errors import Exhausted, Exists, Invalid, NotFound, TooLarge
from millrace.server.auth.access import (
    Principal,
    Quota,
    User,
    parse_rule,
)
from millrace.server.auth.audit import Actor
from millrace.server.auth.store import RESERVED, UserStore
from tests.client.harness import embedded, eventually, opened, run

BY = Actor("root", "127.0.0.1")
WHO = Principal("root", (), "127.0.0.1")
ADA = User("ada", (parse_rule("allow read default/*"),), Quota(queues=2, cursors=1))
SECRET = bytes(32)


async def holds(condition: object) -> bool:
    assert callable(condition)
    return bool(condition())


@embedded
async def test_a_change_is_in_force_before_it_is_answered(m: Millrace) -> None:
    book = await UserStore.open(m)
    await book.add_user(ADA, BY)
    token, text = await book.new_token("ada", "laptop", BY)
    found = book.roll.who(text, token.made_ms)
    assert found is not None
    assert found.rules == ADA.rules
    await book.set_user(User("ada"), BY)
    changed = book.roll.who(text, token.made_ms)
    assert changed is not None
    assert changed.rules == ()
    await book.revoke_token(token, BY)
    assert book.roll.who(text, token.made_ms) is None
    await book.revoke_token(token, BY)
    await book.close()
    await book.close()


@embedded
async def test_one_who_is_removed_is_gone_with_all_secrets(m: Millrace) -> None:
    book = await UserStore.open(m, secret=SECRET)
    await book.add_user(ADA, BY)
    _, text = await book.new_token("ada", "laptop", BY)
    key, _ = await book.new_key("ada", "boto", BY)
    await book.remove_user("ada", BY)
    await book.add_user(ADA, BY)
    assert book.roll.who(text, 1) is None
    assert book.roll.key(key.id, 1) is None
    assert book.roll.secrets == 0
    await book.close()


@embedded
async def test_a_secret_made_while_its_user_is_removed_knows_nobody_then_or_later(
    m: Millrace,
) -> None:
    book = await UserStore.open(m)
    await book.add_user(ADA, BY)
    late = await UserStore.open(m, follower=None, secret=SECRET)
    await book.remove_user("ada", BY)
    # This one has not heard of it.
    token, text = await late.new_token("ada", "laptop", BY)
    key, _ = await late.new_key("ada", "boto", BY)
    await eventually(lambda: holds(lambda: book.roll.secrets == 2))
    assert book.roll.who(text, token.made_ms) is None
    await book.add_user(ADA, BY)
    assert book.roll.who(text, token.made_ms) is None
    assert book.roll.key(key.id, key.made_ms) is None
    _, good = await book.new_token("ada", "phone", BY)
    await book.set_user(User("ada"), BY)
    assert book.roll.who(good, token.made_ms) is not None
    await book.close()


@embedded
async def test_one_who_is_removed_stays_so_though_another_process_changes_them(m: Millrace) -> None:
    book = await UserStore.open(m)
    await book.add_user(ADA, BY)
    late = await UserStore.open(m, follower=None)
    await book.set_user(User("ada"), BY)
    await book.remove_user("ada", BY)
    # This one has not heard of it.
    await late.set_user(ADA, BY)
    fresh = await UserStore.open(m, follower=None)
    assert not fresh.roll.users
    await fresh.add_user(User("ada"), BY)
    await late.set_user(ADA, BY)
    fresh = await UserStore.open(m, follower=None)
    found = fresh.roll.user("ada")
    assert found is not None
    assert found.rules == (), "they are another"
    await fresh.set_user(ADA, BY)
    fresh = await UserStore.open(m, follower=None)
    found = fresh.roll.user("ada")
    assert found is not None
    assert (found.rules, found.quota) == (ADA.rules, ADA.quota)
    await eventually(lambda: holds(lambda: book.roll.user("ada") == found))
    await book.remove_user("ada", BY)
    queue = await m.find("access", space="system")
    assert not [row.key for row in await queue.peek(100) if row.body is not None]
    await book.close()


@embedded
async def test_what_others_change_is_followed(m: Millrace) -> None:
    first = await UserStore.open(m, follower="first")
    second = await UserStore.open(m, follower="second")
    await first.add_user(ADA, BY)
    token, text = await first.new_token("ada", "laptop", BY)
    await eventually(lambda: holds(lambda: second.roll.who(text, 1)))
    await first.revoke_token(token, BY)
    await eventually(lambda: holds(lambda: second.roll.who(text, 1) is None))
    await second.remove_user("ada", BY)
    await eventually(lambda: holds(lambda: not first.roll.users))
    await first.close()
    await second.close()


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async def write() -> str:
        async with opened(tmp_path / "data") as m:
            book = await UserStore.open(m)
            await book.add_user(ADA, BY)
            _, text = await book.new_token("ada", "laptop", BY)
            token, _ = await book.new_token("ada", "old", BY)
            await book.revoke_token(token, BY)
            await book.close()
            return text

    async def read(text: str, follower: str | None) -> None:
        async with opened(tmp_path / "data") as m:
            book = await UserStore.open(m, follower=follower)
            assert book.roll.who(text, 1) is not None
            found = book.roll.user("ada")
            assert found is not None
            assert (found.rules, found.quota) == (ADA.rules, ADA.quota)
            assert [token.name for token in book.roll.tokens()] == ["laptop"]
            await book.close()

    text = run(write())
    run(read(text, "server"))
    run(read(text, None))


def test_no_token_lies_in_the_folder(tmp_path: Path) -> None:
    async def write() -> tuple[str, str]:
        async with opened(tmp_path / "data") as m:
            book = await UserStore.open(m, secret=SECRET)
            await book.add_user(ADA, BY)
            _, text = await book.new_token("ada", "laptop", BY)
            _, secret = await book.new_key("ada", "boto", BY)
            await book.close()
            return text, secret

    secrets = run(write())
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert files
    for path in files:
        data = path.read_bytes()
        for secret in secrets:
            assert secret.encode() not in data
            assert secret[3:].encode() not in data


@embedded
async def test_an_expired_token_knows_nobody(m: Millrace) -> None:
    now = [1_000]
    book = await UserStore.open(m, now_ms=lambda: now[0])
    await book.add_user(ADA, BY)
    token, text = await book.new_token("ada", "laptop", BY, seconds=2)
    assert (token.made_ms, token.expires_ms) == (1_000, 3_000)
    assert book.roll.who(text, 2_999) is not None
    assert book.roll.who(text, 3_000) is None
    await book.close()


@embedded
async def test_bad_input_is_refused_and_changes_nothing(m: Millrace) -> None:
    book = await UserStore.open(m, follower=None)
    await book.add_user(ADA, BY)
    with pytest.raises(Exists):
        await book.add_user(User("ada"), BY)
    for name in ("", "a b", "ü", "x" * 81, "a/b", *RESERVED):
        with pytest.raises((Invalid, TooLarge)) as caught:
            await book.add_user(User(name), BY)
        assert caught.value.field == "user"
    with pytest.raises(TooLarge) as long:
        await book.set_user(User("ada", ADA.rules * (limits.RULES_MAX + 1)), BY)
    assert (long.value.field, long.value.limit) == ("rules", limits.RULES_MAX)
    with pytest.raises(NotFound):
        await book.set_user(User("bob"), BY)
    with pytest.raises(NotFound):
        await book.remove_user("bob", BY)
    with pytest.raises(NotFound):
        await book.new_token("bob", "x", BY)
    with pytest.raises(Invalid):
        await book.new_token("ada", "a b", BY)
    with pytest.raises(TooLarge):
        await book.new_token("ada", "x", BY, seconds=1e12)
    with pytest.raises(Invalid) as no_file:
        await book.new_key("ada", "x", BY)
    assert no_file.value.field == "key_file"
    assert list(book.roll.users) == ["ada"]
    assert book.roll.users["ada"].rules == ADA.rules
    assert book.roll.secrets == 0


@embedded
async def test_a_user_has_a_bounded_number_of_secrets(m: Millrace) -> None:
    book = await UserStore.open(m, follower=None, secret=SECRET)
    await book.add_user(ADA, BY)
    for number in range(limits.USER_SECRETS_MAX - 1):
        await book.new_token("ada", f"t{number}", BY)
    await book.new_key("ada", "last", BY)
    with pytest.raises(TooLarge):
        await book.new_token("ada", "more", BY)
    with pytest.raises(TooLarge):
        await book.new_key("ada", "more", BY)


@embedded
async def test_secrets_of_keys_follow_from_the_file(m: Millrace) -> None:
    book = await UserStore.open(m, follower=None, secret=SECRET)
    await book.add_user(ADA, BY)
    key, secret = await book.new_key("ada", "boto", BY)
    assert (len(key.id), len(secret)) == (20, 40)
    assert book.secret_of(key.id) == secret
    assert book.secret_of("MRAKUNKNOWN") != secret
    other = await UserStore.open(m, follower=None, secret=b"\1" * 32)
    assert other.secret_of(key.id) != secret
    await book.revoke_key(key, BY)
    assert book.roll.key(key.id, 1) is None


@embedded
async def test_each_act_and_its_note_are_one(m: Millrace) -> None:
    book = await UserStore.open(m, follower=None, secret=SECRET)
    await book.add_user(ADA, BY)
    token, text = await book.new_token("ada", "laptop", BY)
    key, secret = await book.new_key("ada", "boto", BY)
    await book.revoke_key(key, BY)
    await book.revoke_token(token, BY)
    await book.set_user(User("ada"), BY)
    await book.remove_user("ada", BY)
    rows = await (await m.find("audit", space="system")).peek(100)
    notes = [json.loads(row.body or b"") for row in rows]
    assert [(note["act"], note["target"]) for note in notes] == [
        ("user.add", "ada"),
        ("token.new", "ada/laptop"),
        ("key.new", "ada/boto"),
        ("key.revoke", "ada/boto"),
        ("token.revoke", "ada/laptop"),
        ("user.set", "ada"),
        ("user.remove", "ada"),
    ]
    assert {(note["who"], note["address"]) for note in notes} == {("root", "127.0.0.1")}
    assert notes[0]["detail"] == "allow read default/*"
    for row in rows:
        assert text.encode() not in (row.body or b"")
        assert secret.encode() not in (row.body or b"")


@embedded
async def test_a_queue_of_another_kind_is_refused(m: Millrace) -> None:
    await m.queue("access", space="system")
    with pytest.raises(Invalid) as caught:
        await UserStore.open(m)
    assert "system" in caught.value.message


@embedded
async def test_a_book_that_is_taken_away_knows_nobody(m: Millrace) -> None:
    book = await UserStore.open(m)
    await book.add_user(ADA, BY)
    assert await m.delete_queue("access", space="system")
    await eventually(lambda: holds(lambda: not book.roll.users))
    other = await UserStore.open(m, follower="other")
    await other.add_user(User("bob"), BY)
    await eventually(lambda: holds(lambda: "bob" in book.roll.users))
    await book.close()
    await other.close()


@embedded
async def test_a_follower_that_lost_its_place_reads_everything_anew(m: Millrace) -> None:
    book = await UserStore.open(m)
    await book.add_user(ADA, BY)
    queue = await m.find("access", space="system")
    cursor = await queue.cursor("server", start="end")
    await cursor.delete()
    other = await UserStore.open(m, follower=None)
    await other.remove_user("ada", BY)
    await eventually(lambda: holds(lambda: not book.roll.users))
    await book.close()


@embedded
async def test_what_nobody_can_read_is_told(m: Millrace) -> None:
    book = await UserStore.open(m)
    await book.add_user(ADA, BY)
    queue = await m.find("access", space="system")
    await queue.publish(b"{}", key="user/ada")
    await eventually(lambda: holds(lambda: "user/ada" in book.unread))
    assert book.roll.user("ada") is None
    await book.close()


@embedded
async def test_what_users_make_is_counted_against_their_quotas(m: Millrace) -> None:
    book = await UserStore.open(m, follower=None)
    await book.add_user(ADA, BY)
    ada = book.roll.principal("ada")
    assert ada is not None
    await book.claim(ada, ada.quota, "queues", "default/a")
    await book.claim(ada, ada.quota, "queues", "default/a")
    await book.claim(ada, ada.quota, "queues", "default/b")
    with pytest.raises(Exhausted) as caught:
        await book.claim(ada, ada.quota, "queues", "default/c")
    assert (caught.value.field, caught.value.limit) == ("queues", 2)
    assert caught.value.after_ms > 0
    await book.claim(ada, ada.quota, "cursors", "default/a/x")
    with pytest.raises(Exhausted):
        await book.claim(ada, ada.quota, "cursors", "default/b/x")
    again = await UserStore.open(m, follower=None)
    with pytest.raises(Exhausted):
        await again.claim(ada, ada.quota, "queues", "default/c")
    await again.unclaim(WHO, "queues", "default/a")
    await again.claim(ada, ada.quota, "queues", "default/c")
    await again.claim(ada, ada.quota, "cursors", "default/b/x")


@embedded
async def test_acts_at_the_same_time_wait_for_each_other(m: Millrace) -> None:
    book = await UserStore.open(m)
    done = await asyncio.gather(*(book.add_user(ADA, BY) for _ in range(5)), return_exceptions=True)
    assert [type(one) for one in done if one is not None] == [Exists] * 4
    await book.close()


ACTS = ("add", "set", "remove", "token", "revoke", "key", "unkey", "claim", "unclaim")


async def act(book: UserStore, chance: Random) -> None:
    """Something that an administrator may do, on what this book knows."""
    name = chance.choice(["a", "b"])
    tokens, keys = book.roll.tokens(name), book.roll.access_keys(name)
    what = chance.choice(ACTS)
    try:
        if what == "add":
            await book.add_user(User(name), BY)
        elif what == "set":
            await book.set_user(User(name, ADA.rules), BY)
        elif what == "remove":
            await book.remove_user(name, BY)
        elif what == "token":
            await book.new_token(name, "t", BY)
        elif what == "key":
            await book.new_key(name, "k", BY)
        elif what == "revoke" and tokens:
            await book.revoke_token(chance.choice(tokens), BY)
        elif what == "unkey" and keys:
            await book.revoke_key(chance.choice(keys), BY)
        elif what == "claim" and (principal := book.roll.principal(name)):
            await book.claim(principal, Quota(), "queues", f"x/{chance.randrange(3)}")
        elif what == "unclaim":
            await book.unclaim(WHO, "queues", f"x/{chance.randrange(3)}")
    except (Exists, NotFound):
        pass


def state(book: UserStore) -> tuple[object, ...]:
    made = [book._ledger.maker("queues", f"x/{number}") for number in range(3)]
    return book.roll.users, book.roll.tokens(), book.roll.access_keys(), made, book.unread


@pytest.mark.parametrize("seed", range(3))
def test_all_who_follow_come_to_know_the_same(seed: int, tmp_path: Path) -> None:
    """Two that follow and act at the same time, and one that reads everything at the end."""

    async def main() -> None:
        chance = Random(seed)
        async with opened(tmp_path / "data") as m:
            books = [
                await UserStore.open(m, follower=name, secret=SECRET) for name in ("one", "two")
            ]
            for _ in range(40):
                await asyncio.gather(*(act(book, chance) for book in books))
            last = await UserStore.open(m, follower=None)
            for book in books:

                async def is_same(book: UserStore = book) -> bool:
                    return state(book) == state(last)

                await eventually(is_same)
                await book.close()

    run(main())
