"""The first administrator: so that a new server is closed to strangers and open to its owner.

Rule 1: where no user is known, and the settings declare no administrator, `admin` is made, who may
do everything. The token lies in a file of mode 0600 in the folder, and is neither printed nor
logged.
Rule 2: a token that lies in the file already, put there by whoever deploys, is taken.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path

from millrace.errors import Invalid
from millrace.server.access import (
    SYSTEM,
    TOKEN_BYTES,
    Token,
    User,
    digest_of,
    is_token,
    make_token,
    may,
)
from millrace.server.audit import Actor
from millrace.server.book import ACCESS, Book
from millrace.server.roll import EVERYTHING
from millrace.server.secret import read_secret, write_secret

ADMIN = "admin"
BY = Actor("settings")


async def first_admin(book: Book, path: Path, declared: Iterable[User] = ()) -> bool:
    """Make the first administrator where nobody is known; returns whether that was so.

    Nobody is made where one of those who are `declared` is an administrator, or has the name: this
    comes before they are made, so that a crash in between leaves no server without one.

    Then a token by which `admin` is known lies in the file. It is written before the user is made:
    a crash in between leaves a file that is taken the next time.

    Raises:
        Invalid: the file is there, and holds no token, or others may read it.
    """
    if book.roll.users or any(map(_is_admin, declared)):
        return False
    try:
        token = read_secret(path, "admin_token_file")
    except FileNotFoundError:
        token = make_token(secrets.token_bytes(TOKEN_BYTES))
        try:
            write_secret(path, token)
        except OSError as error:
            said = f"{path} cannot be written: {error.strerror}"
            raise Invalid(said, field="admin_token_file") from error
    if not is_token(token):
        raise Invalid(
            f"{path} holds no token: 'mr_' and 43 letters and digits, from 32 random bytes; "
            "remove it, and one is made",
            field="admin_token_file",
        )
    first = Token(ADMIN, "first", digest_of(token), book.now_ms())
    await book.add_user(User(ADMIN, EVERYTHING), BY, token=first)
    return True


def _is_admin(user: User) -> bool:
    return user.name == ADMIN or may(user.rules, "admin", SYSTEM, ACCESS)


def is_known(book: Book, path: Path) -> bool:
    """Whether whoever shows what is in the file may do everything still."""
    try:
        found = book.roll.who(read_secret(path, "admin_token_file"), book.now_ms())
    except (FileNotFoundError, Invalid):
        return False
    return found is not None and found.rules == EVERYTHING
