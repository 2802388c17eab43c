"""Who may do what: users, their rules, and the secrets by which they are known.

Rule 1: what no rule allows is denied, and a rule that denies wins over all that allow.
Rule 2: there is one function that decides, for every verb on every resource: `may`.
Rule 3: a token is never kept, only its digest; one that is unknown, expired or revoked is answered
in the same words.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from millrace.errors import Invalid

Verb = Literal["publish", "work", "read", "manage", "admin"]
"""Publish messages; lease and end them; read without ending; make, change, end queues and topics;
care for users and for the whole."""

VERBS: tuple[Verb, ...] = get_args(Verb)
TOKEN_PREFIX = "mr_"
TOKEN_BYTES = 32
_RULE = re.compile(r"(allow|deny)\s+([a-z,*]+)\s+([A-Za-z0-9_.*-]+)/([A-Za-z0-9_.*-]+)")


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """Allows or denies verbs on the queues and topics whose names fit."""

    allow: bool
    verbs: tuple[Verb, ...]
    space: str
    name: str

    def __str__(self) -> str:
        verbs = "*" if self.verbs == VERBS else ",".join(self.verbs)
        return f"{'allow' if self.allow else 'deny'} {verbs} {self.space}/{self.name}"


def parse_rule(text: str) -> Rule:
    """A rule as people write it: `allow publish,work default/orders-*`.

    Raises:
        Invalid: it is none.
    """
    found = _RULE.fullmatch(text.strip())
    if found is None:
        raise Invalid(
            f"{text!r} is no rule; write one as 'allow publish,work default/orders-*'",
            field="rule",
        )
    named = found[2].split(",")
    verbs = VERBS if named == ["*"] else tuple(verb for verb in VERBS if verb in named)
    unknown = [verb for verb in named if verb not in (*VERBS, "*")]
    if unknown or not verbs or ("*" in named and len(named) > 1):
        raise Invalid(
            f"{found[2]!r} are no verbs; there are {', '.join(VERBS)}, and * for all of them",
            field="rule",
        )
    return Rule(found[1] == "allow", verbs, found[3], found[4])


def may(rules: tuple[Rule, ...], verb: Verb, space: str, name: str) -> bool:
    """Whether someone with these rules may do this."""
    allowed = False
    for rule in rules:
        if verb in rule.verbs and _fits(rule.space, space) and _fits(rule.name, name):
            if not rule.allow:
                return False
            allowed = True
    return allowed


def _fits(pattern: str, name: str) -> bool:
    if "*" not in pattern:
        return pattern == name
    return pattern == "*" or _glob(pattern).fullmatch(name) is not None


@lru_cache(maxsize=4096)
def _glob(pattern: str) -> re.Pattern[str]:
    """A pattern in which * stands for any part of a name."""
    return re.compile(".*".join(map(re.escape, re.split(r"\*+", pattern))))


class User(msgspec.Struct, frozen=True, array_like=True):
    """Someone who is known by tokens or keys."""

    name: str
    rules: tuple[Rule, ...] = ()


class Principal(msgspec.Struct, frozen=True):
    """Who asks, as far as everything behind the door has to know."""

    name: str
    rules: tuple[Rule, ...]
    where: str = ""
    """The address that they ask from."""


class Token(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a token."""

    user: str
    name: str
    digest: bytes
    made_ms: int
    expires_ms: int = 0
    """0: never."""


def make_token(secret: bytes) -> str:
    """The text of a token, from 32 random bytes."""
    assert len(secret) == TOKEN_BYTES
    return TOKEN_PREFIX + urlsafe_b64encode(secret).rstrip(b"=").decode()


def digest_of(token: str) -> bytes:
    """By which a token is known; of 256 random bits a plain hash tells nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


class Book:
    """The users and tokens that are known now."""

    def __init__(self) -> None:
        self._users: dict[str, User] = {}
        self._tokens: dict[bytes, Token] = {}

    def put_user(self, name: str, user: User | None) -> None:
        """A user is new, was changed or is gone; the tokens of one who is gone know nobody."""
        if user is None:
            self._users.pop(name, None)
        else:
            self._users[name] = user

    def put_token(self, digest: bytes, token: Token | None) -> None:
        """A token is new, or was revoked."""
        if token is None:
            self._tokens.pop(digest, None)
        else:
            self._tokens[digest] = token

    def who(self, token: str, now_ms: int) -> User | None:
        """The user whose token this is; None for whatever reason there is none."""
        found = self._tokens.get(digest_of(token))
        if found is None or (found.expires_ms and found.expires_ms <= now_ms):
            return None
        return self._users.get(found.user)
