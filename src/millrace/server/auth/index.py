"""An in-memory index of users, tokens and access keys.

Rule 1: an unknown, wrong, expired or revoked secret, and one of a removed user, get the same answer
after the same work.
Rule 2: a secret belongs to the user who existed when it was made, not to a later user of the same
name: a secret that another process makes during the removal of the user is never valid.
Rule 3: the newest seq decides for each record: late arrivals change nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import TypeVar

from millrace.server.auth.access import (
    AccessKey,
    Principal,
    Token,
    User,
    digest_of,
    is_token,
    parse_rule,
)

K = TypeVar("K")
V = TypeVar("V")
S = TypeVar("S", Token, AccessKey)

NOBODY = "-"
"""Name of the placeholder for unknown senders; no user has it."""

_NO_TOKEN = Token(NOBODY, "", bytes(32), 0)
_NO_USER = User(NOBODY)


EVERYTHING = (parse_rule("allow * */*"),)
"""Rules that allow everything."""

ANONYMOUS_RULES = ("allow publish,work,read,manage */*",)
"""Rules of anonymous requests; they do not apply to the space `system`."""


def local_principal() -> Principal:
    """Return the principal of processes that may open the folder itself, with all rights."""
    return Principal("local", EVERYTHING)


class PrincipalIndex:
    """Index of the current users, tokens and access keys."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self._principals: dict[str, Principal] = {}
        self._tokens: dict[bytes, Token] = {}
        self._keys: dict[str, AccessKey] = {}
        self._nobody = Principal(NOBODY, ())
        self.version = 0
        """Changes with every update."""

    # --- Records ------------------------------------------------------------------------------

    def put_user(self, name: str, user: User | None) -> None:
        """Add, change or remove a user; the secrets of a removed user become invalid."""
        self.version += 1
        if user is None:
            self._users.pop(name, None)
            self._principals.pop(name, None)
        elif self._users.get(name) != user:
            self._users[name] = user
            self._principals[name] = Principal(name, user.rules, quota=user.quota)

    def put_token(self, digest: bytes, token: Token | None) -> None:
        """Add or revoke a token."""
        self.version += 1
        _put(self._tokens, digest, token)

    def put_key(self, key_id: str, key: AccessKey | None) -> None:
        """Add or revoke an access key."""
        self.version += 1
        _put(self._keys, key_id, key)

    @property
    def users(self) -> dict[str, User]:
        """All users, by name."""
        return dict(sorted(self._users.items()))

    def user(self, name: str) -> User | None:
        """Return the user of this name, or None."""
        return self._users.get(name)

    def tokens(self, user: str | None = None) -> list[Token]:
        """Return the tokens of a user or of all, oldest first, including expired ones."""
        return _of(self._tokens.values(), user)

    def access_keys(self, user: str | None = None) -> list[AccessKey]:
        """Return the access keys of a user or of all, oldest first, including expired ones."""
        return _of(self._keys.values(), user)

    @property
    def secrets(self) -> int:
        """Number of tokens and keys."""
        return len(self._tokens) + len(self._keys)

    # --- Lookup -------------------------------------------------------------------------------

    def who(self, token: str, now_ms: int) -> Principal | None:
        """Return the principal of a token, or None for any cause of failure.

        A text without the form of a token is refused even if its digest is declared: a word that
        people choose is easily guessed.
        """
        digest = digest_of(token)
        is_shaped = is_token(token)
        found = self._tokens.get(digest, _NO_TOKEN)
        is_same = hmac.compare_digest(found.digest, digest)
        principal = self._principals.get(found.user, self._nobody)
        is_own = self._users.get(found.user, _NO_USER).id == found.of
        is_over = 0 < found.expires_ms <= now_ms
        is_known = is_same and is_own and not is_over and is_shaped
        return principal if is_known and principal is not self._nobody else None

    def next_end_ms(self, now_ms: int) -> int:
        """Return the time at which the next token or key expires; 0 if none will."""
        ends = [token.expires_ms for token in self._tokens.values()]
        ends += [key.expires_ms for key in self._keys.values()]
        return min((end_ms for end_ms in ends if end_ms > now_ms), default=0)

    def key(self, key_id: str, now_ms: int) -> tuple[AccessKey, Principal] | None:
        """Return an access key and its principal, or None for any cause of failure."""
        found = self._keys.get(key_id)
        if found is None or 0 < found.expires_ms <= now_ms or found.user not in self._principals:
            return None
        if self._users[found.user].id != found.of:
            return None
        return found, self._principals[found.user]

    def principal(self, name: str) -> Principal | None:
        """Return the principal of the user of this name, or None."""
        return self._principals.get(name)


def _put(table: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _of(secrets: Iterable[S], user: str | None) -> list[S]:
    found = [secret for secret in secrets if user is None or secret.user == user]
    return sorted(found, key=lambda secret: (secret.user, secret.made_ms, secret.name))
