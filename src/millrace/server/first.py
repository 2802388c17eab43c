"""The first administrator: so that a new server is closed to strangers and open to its owner.

Rule 1: where no user is known, `admin` is made, who may do everything. The token lies in a file of
mode 0600 in the folder, and is neither printed nor logged.
Rule 2: a token that lies in the file already, put there by whoever deploys, is taken.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from millrace.errors import Invalid
from millrace.server.access import TOKEN_BYTES, Token, User, digest_of, is_token, make_token
from millrace.server.audit import Actor
from millrace.server.book import Book
from millrace.server.roll import EVERYTHING
from millrace.server.secret import read_secret, write_secret

ADMIN = "admin"
BY = Actor("settings")


async def first_admin(book: Book, path: Path) -> bool:
    """Make the first administrator where nobody is known; returns whether that was so.

    Then a token by which `admin` is known lies in the file. It is written before the user is made:
    a crash in between leaves a file that is taken the next time.

    Raises:
        Invalid: the file is there, and holds no token, or others may read it.
    """
    if book.roll.users:
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
