"""The keys of accounts: the access keys of users, looked up by the user's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace.server.access import AccessKey, Principal
from millrace.server.book import Book
from millrace.server.roll import NOBODY, Roll

Proves = Callable[[str], bool]
"""Whether what was sent is proved by a secret."""


class Keyring:
    """Finds out whose key something was made with.

    An account that is not known takes as much work as one with two keys, as they have usually.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._seen: tuple[Roll, int] | None = None
        self._keys: dict[str, list[AccessKey]] = {}

    def find(self, account: str, proves: Proves) -> Principal | None:
        """The account, if one of its keys proves it; all of them are tried."""
        found: Principal | None = None
        for secret, principal in self.secrets(account):
            if proves(secret):
                found = principal
        return found

    def secrets(self, account: str) -> Iterator[tuple[str, Principal | None]]:
        """The secrets of an account's keys that are good now, or two that are nobody's."""
        roll, now_ms = self._book.roll, self._book.now_ms()
        is_known = False
        for key in self._of(roll, account):
            known = roll.key(key.id, now_ms)
            if known is not None:
                is_known = True
                yield self._book.secret_of(key.id), known[1]
        for _ in range(0 if is_known else 2):
            yield self._book.secret_of(NOBODY), None

    def _of(self, roll: Roll, account: str) -> list[AccessKey]:
        seen = (roll, roll.version)
        if self._seen != seen:
            self._keys = {}
            for key in roll.access_keys():
                self._keys.setdefault(key.user, []).append(key)
            self._seen = seen
        return self._keys.get(account, [])
