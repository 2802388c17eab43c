"""Shared parts of the verbs `user`, `token` and `key`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from millrace.cli.exit_errors import ExitError
from millrace.cli.formatting import time_text
from millrace.cli.printing import TableColumn
from millrace.cli.shell import Shell, suggest
from millrace.errors import Invalid
from millrace.server.auth.access import (
    AccessKey,
    Quota,
    Rule,
    Token,
    User,
    parse_rule,
)

if TYPE_CHECKING:
    from millrace.server.auth.audit import Actor
    from millrace.server.auth.index import PrincipalIndex
    from millrace.server.auth.store import UserStore

S = TypeVar("S", Token, AccessKey)


class RuleType(click.ParamType):  # type: ignore[type-arg]
    """An access rule as text, such as 'allow publish default/orders'."""

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


class QuotaType(click.ParamType):  # type: ignore[type-arg]
    """One limit of a quota, as NAME=NUMBER."""

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
            self.fail(f"{name!r} is not a quota; {hint}", param, ctx)
        if not text.replace(".", "", 1).isdecimal() or (name != "requests" and "." in text):
            self.fail(f"{value!r} has no number from 0 on; 0: the server's default", param, ctx)
        return name, float(text) if "." in text else int(text)


RULE = RuleType()
QUOTA = QuotaType()


def actor_of(shell: Shell, book: UserStore) -> Actor:
    """Return the actor for the audit log: the local user, or the user of the server's token."""
    from millrace.server.auth.audit import Actor

    target = shell.target
    if isinstance(target, Path):
        return Actor("local", f"uid {os.getuid()}")
    who = book.roll.who(target.token or "", book.now_ms())
    return Actor("anonymous" if who is None else who.name, f"uid {os.getuid()}")


@asynccontextmanager
async def open_users(
    shell: Shell, *, make: bool = False, with_keys: bool = False
) -> AsyncIterator[UserStore]:
    """Open the users of a folder or server; `with_keys` also derives secrets of access keys."""
    from millrace.server.auth.secret_file import ACCESS_KEY_FILE, key_secret
    from millrace.server.auth.store import UserStore

    why = "secrets of access keys are derived from a file in the folder"
    folder = shell.folder(why) if with_keys else None
    async with shell.open(make=make) as m:
        secret = None if folder is None else key_secret(folder / ACCESS_KEY_FILE)
        book = await UserStore.open(m, follower=None, secret=secret)
        for key, why in book.unread.items():
            shell.out.note(f"{key!r} in system/access is ignored: {why}")
        yield book


def find_user(book: UserStore, name: str) -> User:
    """Return the user of this name.

    Raises:
        ExitError: the user does not exist; the hint suggests the nearest name.
    """
    found = book.roll.user(name)
    if found is None:
        hint = suggest(name, book.roll.users, f"`millrace user add {name}` adds one")
        raise ExitError(f"there is no user {name!r}", hint, code="not_found")
    return found


def quota_text(quota: Quota) -> str:
    """Return the limits of a quota as text."""
    parts = [(name, getattr(quota, name)) for name in Quota.__struct_fields__]
    return " ".join(f"{name}={value:g}" for name, value in parts if value) or "-"


def secret_fields(one: Token | AccessKey) -> dict[str, object]:
    """Return the fields of a token or access key for JSON, without its secret."""
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
    shell: Shell,
    user: str | None,
    kind: str,
    of: Callable[[PrincipalIndex], Sequence[Token | AccessKey]],
) -> None:
    """Print a table of tokens or access keys."""
    async with open_users(shell) as book:
        if user is not None:
            find_user(book, user)
        found = of(book.roll)
    rows = [
        (
            secret_fields(one),
            [one.user, one.name, one.id, time_text(one.made_ms), _expires(one.expires_ms)]
            + ([one.account or "-"] if isinstance(one, AccessKey) else []),
        )
        for one in found
    ]
    columns = [
        TableColumn("USER", is_long=True),
        TableColumn("NAME", is_long=True),
        TableColumn("ID"),
        TableColumn("MADE"),
        TableColumn("EXPIRES"),
        *([TableColumn("ACCOUNT")] if kind == "key" else []),
    ]
    empty = f"no {kind}s; `millrace {kind} new USER` creates one"
    shell.out.table(kind, columns, rows, empty=empty)


def find_secrets(found: Sequence[S], user: str, name: str, kind: str) -> list[S]:
    """Return the tokens or keys with this name or id.

    Raises:
        ExitError: there is none; the hint suggests the nearest name.
    """
    wanted = [one for one in found if name in (one.name, one.id)]
    if not wanted:
        known = [one.name for one in found]
        hint = suggest(name, known, f"`millrace {kind} list {user}` lists them")
        raise ExitError(f"{user} has no {kind} {name!r}", hint, code="not_found")
    return wanted


def _expires(expires_ms: int) -> str:
    return time_text(expires_ms) if expires_ms else "never"
