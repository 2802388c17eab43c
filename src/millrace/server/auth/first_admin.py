"""Creation of the first administrator, so that a new server is closed to all others and open to its
owner.

Rule 1: if no stored or declared user may administer, the user `admin` is created, with all rights.
Its token is in a file of mode 0600 in the folder, and is neither printed nor logged.
Rule 2: a token that is in the file already, written by a deployment, is used as long as there are
no users. If there are, it may have been revoked, and is never made valid again.
Rule 3: a user named `admin` counts as an administrator whatever their rights: with it an operator
can declare that nobody administers remotely.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

from millrace.errors import Invalid
from millrace.server.auth.access import (
    SYSTEM,
    TOKEN_BYTES,
    Token,
    User,
    digest_of,
    is_token,
    make_token,
    may,
)
from millrace.server.auth.audit import Actor
from millrace.server.auth.index import EVERYTHING
from millrace.server.auth.secret_file import read_secret, write_secret
from millrace.server.auth.store import ACCESS, UserStore

ADMIN = "admin"
BY = Actor("settings")


async def first_admin(book: UserStore, path: Path, declared: Iterable[User] = ()) -> bool:
    """Create the first administrator if no user may administer; return True if one was created.

    None is created if a stored or `declared` user is an administrator, or has the name. This runs
    before the declared users are created, so that a crash in between leaves no server without an
    administrator. Nor is one created if other users are stored and the file exists or cannot be
    written: the server runs as before, and `is_administered` reports that nobody may administer.

    Otherwise the file contains a valid token of `admin`. It is written before the user is created:
    after a crash in between, the next start uses the file, unless there are other users.

    Raises:
        Invalid: the file exists and has no token, or others may read it.
    """
    if is_administered(book) or any(map(_is_admin, declared)):
        return False
    try:
        token = read_secret(path, "admin_token_file")
        if book.roll.users:
            return False
    except FileNotFoundError:
        token = make_token(secrets.token_bytes(TOKEN_BYTES))
        try:
            write_secret(path, token)
        except OSError as error:
            if book.roll.users:
                return False
            said = f"{path} cannot be written: {error.strerror}"
            raise Invalid(said, field="admin_token_file") from error
    except Invalid:
        if book.roll.users:
            return False
        raise
    if not is_token(token):
        raise Invalid(
            f"{path} holds no token: 'mr_' and 43 letters and digits, from 32 random bytes; "
            "remove it, and one is made",
            field="admin_token_file",
        )
    first = Token(ADMIN, "first", digest_of(token), book.now_ms())
    await book.add_user(User(ADMIN, EVERYTHING), BY, token=first)
    return True


def is_administered(book: UserStore) -> bool:
    """Return whether a stored user may administer, or is named `admin`."""
    return any(map(_is_admin, book.roll.users.values()))


def _is_admin(user: User) -> bool:
    return user.name == ADMIN or may(user.rules, "admin", SYSTEM, ACCESS)


def is_known(book: UserStore, path: Path) -> bool:
    """Return whether the token in the file still has all rights."""
    try:
        found = book.roll.who(read_secret(path, "admin_token_file"), book.now_ms())
    except (FileNotFoundError, Invalid):
        return False
    return found is not None and found.rules == EVERYTHING
