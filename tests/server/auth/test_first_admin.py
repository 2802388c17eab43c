"""The first administrator."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from millrace import Millrace
from millrace.errors import Invalid
from millrace.server.auth.access import User, make_token, parse_rule
from millrace.server.auth.audit import Actor
from millrace.server.auth.first_admin import first_admin, is_administered, is_known
from millrace.server.auth.store import UserStore
from tests.client.harness import opened, run

TOKEN = make_token(bytes(32))


async def begin(m: Millrace, path: Path) -> tuple[UserStore, bool]:
    book = await UserStore.open(m, follower=None)
    return book, await first_admin(book, path)


def test_where_nobody_is_known_an_administrator_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            book, is_new = await begin(m, path)
            assert is_new
            token = path.read_text().strip()
            found = book.roll.who(token, 1)
            assert found is not None
            assert found.may("admin", "system", "access")
            _, is_new = await begin(m, path)
            assert not is_new
            assert path.read_text().strip() == token

    run(main())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_crash_leaves_no_administrator_without_a_token(tmp_path: Path) -> None:
    """User and token are one message of the log each, and both in one transaction."""

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            await begin(m, tmp_path / "admin.token")
            [note] = await (await m.find("audit", space="system")).peek()
            assert b"user.add" in (note.body or b"")

    run(main())


def test_where_nobody_who_is_known_may_administer_one_is_made(tmp_path: Path) -> None:
    """A user who was added before the first start does not stand for an administrator."""
    path = tmp_path / "admin.token"

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            book = await UserStore.open(m, follower=None)
            web = User("web", (parse_rule("allow publish,work,read,manage default/*"),))
            await book.add_user(web, Actor("root"))
            assert not is_administered(book)
            assert await first_admin(book, path)
            assert is_administered(book)
            assert is_known(book, path)

    run(main())


@pytest.mark.parametrize(
    "user", [User("ada", (parse_rule("allow admin system/*"),)), User("admin")]
)
def test_where_someone_is_known_who_may_administer_nobody_is_made(
    tmp_path: Path, user: User
) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            book = await UserStore.open(m, follower=None)
            await book.add_user(user, Actor("root"))
            assert not await first_admin(book, tmp_path / "admin.token")
            assert list(book.roll.users) == [user.name]

    run(main())
    assert not (tmp_path / "admin.token").exists()


def test_a_token_that_may_have_been_revoked_is_not_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            book, _ = await begin(m, path)
            await book.add_user(User("web"), Actor("root"))
            await book.remove_user("admin", Actor("root"))
            for mode in (0o600, 0o644):
                path.chmod(mode)
                assert not await first_admin(book, path)
                assert book.roll.who(path.read_text().strip(), 1) is None
            assert not is_administered(book)
            path.unlink()
            assert not await first_admin(book, tmp_path / "missing" / "admin.token")
            assert await first_admin(book, path)

    run(main())


@pytest.mark.parametrize(
    ("name", "rule"),
    [("ada", "allow * */*"), ("ada", "allow admin system/*"), ("admin", "allow read */*")],
)
def test_whoever_is_declared_as_an_administrator_is_the_first(
    tmp_path: Path, name: str, rule: str
) -> None:
    path = tmp_path / "admin.token"

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            book = await UserStore.open(m, follower=None)
            assert not await first_admin(book, path, [User(name, (parse_rule(rule),))])
            assert not is_known(book, path)
            assert not path.exists()
            others = [User("ada", (parse_rule("allow publish,admin default/*"),))]
            assert await first_admin(book, path, others)
            assert is_known(book, path)

    run(main())


def test_a_token_that_is_there_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            book, _ = await begin(m, path)
            assert book.roll.who(TOKEN, 1) is not None

    run(main())


@pytest.mark.parametrize(
    ("text", "mode"), [("secret", 0o600), (TOKEN[:-1], 0o600), ("", 0o600), (TOKEN, 0o644)]
)
def test_a_weak_or_open_token_is_refused_and_nobody_made(
    tmp_path: Path, text: str, mode: int
) -> None:
    path = tmp_path / "admin.token"
    path.write_text(text)
    path.chmod(mode)

    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            with pytest.raises(Invalid) as caught:
                await begin(m, path)
            assert caught.value.field == "admin_token_file"
            assert text == "" or text not in caught.value.message
            assert not (await UserStore.open(m, follower=None)).roll.users

    run(main())


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "data") as m:
            with pytest.raises(Invalid, match="cannot be written"):
                await begin(m, tmp_path / "missing" / "admin.token")

    run(main())
