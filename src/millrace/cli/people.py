"""What the verbs on users, tokens and keys share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from millrace.cli.ending import Ended
from millrace.cli.printing import Column
from millrace.cli.shell import Shell, suggest
from millrace.cli.text import moment
from millrace.errors import Invalid
from millrace.server.access import AccessKey, Quota, Rule, Token, User, parse_rule

if TYPE_CHECKING:
    from millrace.server.audit import Actor
    from millrace.server.book import Book
    from millrace.server.roll import Roll

S = TypeVar("S", Token, AccessKey)


class RuleKind(click.ParamType):  # type: ignore[type-arg]
    """A rule as people write it."""

    name = "rule"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Rule:
        if isinstance(value, Rule):
            return value
        try:
            return parse_rule(str(value))
        except Invalid as error:
            self.fail(error.message, param, ctx)


class QuotaKind(click.ParamType):  # type: ignore[type-arg]
    """One part of a quota, as NAME=NUMBER."""

    name = "name=number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        if isinstance(value, tuple):
            return value
        name, _, text = str(value).partition("=")
        known = Quota.__struct_fields__
        if name not in known:
            hint = suggest(name, known, f"there are {', '.join(known)}")
            self.fail(f"{name!r} is no quota; {hint}", param, ctx)
        if not text.replace(".", "", 1).isdecimal() or (name != "requests" and "." in text):
            self.fail(f"{value!r} has no number from 0 on; 0 is without a bound", param, ctx)
        return name, float(text) if "." in text else int(text)


RULE = RuleKind()
QUOTA = QuotaKind()


def by(shell: Shell, book: Book) -> Actor:
    """Who acts: whoever may open the folder, or whom the server knows by the token."""
    from millrace.server.audit import Actor

    target = shell.target
    if isinstance(target, Path):
        return Actor("local", f"uid {os.getuid()}")
    who = book.roll.who(target.token or "", book.now_ms())
    return Actor("anonymous" if who is None else who.name, f"uid {os.getuid()}")


@asynccontextmanager
async def open_book(
    shell: Shell, *, make: bool = False, with_keys: bool = False
) -> AsyncIterator[Book]:
    """The users of the folder; with `with_keys`, the secrets of access keys can be told, too."""
    from millrace.server.book import Book
    from millrace.server.secret import ACCESS_KEY_FILE, key_secret

    why = "secrets of access keys are made of a file in the folder"
    folder = shell.folder(why) if with_keys else None
    async with shell.open(make=make) as m:
        secret = None if folder is None else key_secret(folder / ACCESS_KEY_FILE)
        book = await Book.open(m, follower=None, secret=secret)
        for key, why in book.unread.items():
            shell.out.note(f"{key!r} in system/access says nothing: {why}")
        yield book


def find_user(book: Book, name: str) -> User:
    """The user of this name.

    Raises:
        Ended: there is none; the hint names the nearest.
    """
    found = book.roll.user(name)
    if found is None:
        hint = suggest(name, book.roll.users, f"`millrace user add {name}` makes one")
        raise Ended(f"there is no user {name!r}", hint, code="not_found")
    return found


def quota_text(quota: Quota) -> str:
    """A quota in a table: what is bounded."""
    parts = [(name, getattr(quota, name)) for name in Quota.__struct_fields__]
    return " ".join(f"{name}={value:g}" for name, value in parts if value) or "-"


def secret_fields(one: Token | AccessKey) -> dict[str, object]:
    """A token or an access key for JSON; not what is secret of it."""
    fields: dict[str, object] = {
        "user": one.user,
        "name": one.name,
        "id": one.id,
        "made_ms": one.made_ms,
        "expires_ms": one.expires_ms or None,
    }
    if isinstance(one, AccessKey):
        fields["account"] = one.account or None
    return fields


async def list_secrets(
    shell: Shell, user: str | None, kind: str, of: Callable[[Roll], Sequence[Token | AccessKey]]
) -> None:
    """List tokens or access keys."""
    async with open_book(shell) as book:
        if user is not None:
            find_user(book, user)
        found = of(book.roll)
    rows = [
        (
            secret_fields(one),
            [one.user, one.name, one.id, moment(one.made_ms), _expires(one.expires_ms)]
            + ([one.account or "-"] if isinstance(one, AccessKey) else []),
        )
        for one in found
    ]
    columns = [
        Column("USER", is_long=True),
        Column("NAME", is_long=True),
        Column("ID"),
        Column("MADE"),
        Column("EXPIRES"),
        *([Column("ACCOUNT")] if kind == "key" else []),
    ]
    empty = f"no {kind}s; `millrace {kind} new USER` makes one"
    shell.out.table(kind, columns, rows, empty=empty)


def named(found: Sequence[S], user: str, name: str, kind: str) -> list[S]:
    """Those of a user that have this name or id.

    Raises:
        Ended: there is none; the hint names the nearest.
    """
    wanted = [one for one in found if name in (one.name, one.id)]
    if not wanted:
        known = [one.name for one in found]
        hint = suggest(name, known, f"`millrace {kind} list {user}` lists them")
        raise Ended(f"{user} has no {kind} {name!r}", hint, code="not_found")
    return wanted


def _expires(expires_ms: int) -> str:
    return moment(expires_ms) if expires_ms else "never"
