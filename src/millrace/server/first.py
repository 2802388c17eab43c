"""The first administrator: so that a new server is closed to strangers and open to its owner.

Rule 1: where nobody may administer, neither of those who are known nor of those whom the settings
declare, `admin` is made, who may do everything. The token lies in a file of mode 0600 in the
folder, and is neither printed nor logged.
Rule 2: a token that lies in the file already, put there by whoever deploys, is taken, as long as no
user is known. Where some are, it may have been revoked, and is never made good again.
Rule 3: whoever is named `admin` counts, whatever they may do: so an operator says that nobody is to
administer from afar.
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
    """Make the first administrator where nobody may administer; returns whether one was made.

    Nobody is made where one of those who are known or `declared` is an administrator, or has the
    name: this comes before they are made, so that a crash in between leaves no server without one.
    Nor where others are known, and a file is there, or none can be written: they are served as
    before, and `is_administered` tells that nobody may administer.

    Then a token by which `admin` is known lies in the file. It is written before the user is made:
    a crash in between leaves a file that is taken the next time, unless others are known.

    Raises:
        Invalid: the file is there, and holds no token, or others may read it.
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


def is_administered(book: Book) -> bool:
    """Whether someone is known who may administer, or is named as if they might."""
    return any(map(_is_admin, book.roll.users.values()))


def _is_admin(user: User) -> bool:
    return user.name == ADMIN or may(user.rules, "admin", SYSTEM, ACCESS)


def is_known(book: Book, path: Path) -> bool:
    """Whether whoever shows what is in the file may do everything still."""
    try:
        found = book.roll.who(read_secret(path, "admin_token_file"), book.now_ms())
    except (FileNotFoundError, Invalid):
        return False
    return found is not None and found.rules == EVERYTHING
