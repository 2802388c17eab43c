"""The keys of accounts: access keys of users, looked up by the user's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace.server.auth.access import AccessKey, Principal
from millrace.server.auth.index import NOBODY, PrincipalIndex
from millrace.server.auth.store import UserStore

Proves = Callable[[str], bool]
"""Returns True if a secret verifies the credentials that were sent."""


class Keyring:
    """Finds the account whose key verifies a credential.

    A lookup for an unknown account takes as long as for an account with two keys, the usual number,
    so that response times do not reveal which accounts exist.
    """

    def __init__(self, book: UserStore) -> None:
        self._book = book
        self._seen: tuple[PrincipalIndex, int] | None = None
        self._keys: dict[str, list[AccessKey]] = {}

    def find(self, account: str, proves: Proves) -> Principal | None:
        """Return the account's principal if one of its keys verifies the credential; all keys are
        tried.
        """
        found: Principal | None = None
        for secret, principal in self.secrets(account):
            if proves(secret):
                found = principal
        return found

    def secrets(self, account: str) -> Iterator[tuple[str, Principal | None]]:
        """Yield the secrets of an account's valid keys with its principal, or two dummy secrets."""
        roll, now_ms = self._book.roll, self._book.now_ms()
        is_known = False
        for key in self._of(roll, account):
            known = roll.key(key.id, now_ms)
            if known is not None:
                is_known = True
                yield self._book.secret_of(key.id), known[1]
        for _ in range(0 if is_known else 2):
            yield self._book.secret_of(NOBODY), None

    def _of(self, roll: PrincipalIndex, account: str) -> list[AccessKey]:
        seen = (roll, roll.version)
        if self._seen != seen:
            self._keys = {}
            for key in roll.access_keys():
                self._keys.setdefault(key.user, []).append(key)
            self._seen = seen
        return self._keys.get(account, [])
