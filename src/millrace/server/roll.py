"""Everyone who is known now, in memory.

Rule 1: one who is unknown, whose secret is wrong, expired or revoked, and whose user is gone, are
answered in the same words after the same work.
Rule 2: a secret is that of the user who was there when it was made, not of one who has the name
since: what another process made while the user was being removed knows nobody, then or later.
Rule 3: each thing is known as of the newest seq that told of it: what comes late changes nothing.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import TypeVar

from millrace.server.access import (
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
"""Who is answered for where nobody is known; no user is named so."""

_NO_TOKEN = Token(NOBODY, "", bytes(32), 0)
_NO_USER = User(NOBODY)


EVERYTHING = (parse_rule("allow * */*"),)
"""The rules of whoever may do all there is."""

ANONYMOUS_RULES = ("allow publish,work,read,manage */*",)
"""What one may do who need not say who they are; not in the space `system`."""


def local_principal() -> Principal:
    """Whoever may open the folder itself, and so may do everything."""
    return Principal("local", EVERYTHING)


class Roll:
    """The users, tokens and keys that are known now."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self._principals: dict[str, Principal] = {}
        self._tokens: dict[bytes, Token] = {}
        self._keys: dict[str, AccessKey] = {}
        self._nobody = Principal(NOBODY, ())
        self.version = 0
        """Another one whenever something has changed."""

    # --- What is known ------------------------------------------------------------------------

    def put_user(self, name: str, user: User | None) -> None:
        """A user is new, was changed or is gone; the secrets of one who is gone know nobody."""
        self.version += 1
        if user is None:
            self._users.pop(name, None)
            self._principals.pop(name, None)
        elif self._users.get(name) != user:
            self._users[name] = user
            self._principals[name] = Principal(name, user.rules, quota=user.quota)

    def put_token(self, digest: bytes, token: Token | None) -> None:
        """A token is new, or was revoked."""
        self.version += 1
        _put(self._tokens, digest, token)

    def put_key(self, key_id: str, key: AccessKey | None) -> None:
        """An access key is new, or was revoked."""
        self.version += 1
        _put(self._keys, key_id, key)

    @property
    def users(self) -> dict[str, User]:
        """All users, by their names."""
        return dict(sorted(self._users.items()))

    def user(self, name: str) -> User | None:
        """The user of this name."""
        return self._users.get(name)

    def tokens(self, user: str | None = None) -> list[Token]:
        """The tokens of a user or of all, oldest first; expired ones too."""
        return _of(self._tokens.values(), user)

    def access_keys(self, user: str | None = None) -> list[AccessKey]:
        """The access keys of a user or of all, oldest first; expired ones too."""
        return _of(self._keys.values(), user)

    @property
    def secrets(self) -> int:
        """How many tokens and keys there are."""
        return len(self._tokens) + len(self._keys)

    # --- Who asks -----------------------------------------------------------------------------

    def who(self, token: str, now_ms: int) -> Principal | None:
        """Whose token this is; None for whatever reason there is nobody.

        What has not the shape of a token is none, though its digest be declared: a word that people
        think of is soon guessed.
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
        """When the next token or key expires; 0: none will."""
        ends = [token.expires_ms for token in self._tokens.values()]
        ends += [key.expires_ms for key in self._keys.values()]
        return min((end_ms for end_ms in ends if end_ms > now_ms), default=0)

    def key(self, key_id: str, now_ms: int) -> tuple[AccessKey, Principal] | None:
        """The access key of this id, and whose it is; None for whatever reason there is none."""
        found = self._keys.get(key_id)
        if found is None or 0 < found.expires_ms <= now_ms or found.user not in self._principals:
            return None
        if self._users[found.user].id != found.of:
            return None
        return found, self._principals[found.user]

    def principal(self, name: str) -> Principal | None:
        """The user of this name, as who asks."""
        return self._principals.get(name)


def _put(table: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _of(secrets: Iterable[S], user: str | None) -> list[S]:
    found = [secret for secret in secrets if user is None or secret.user == user]
    return sorted(found, key=lambda secret: (secret.user, secret.made_ms, secret.name))
