"""Users, tokens and keys as messages of the queue `system/access` (docs/formats/access.md).

Rule: a message that is none of these makes nobody known. It is not skipped in silence: who reads it
is told why it says nothing.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import msgspec

from millrace.decoding import decode_json
from millrace.errors import Invalid
from millrace.server.access import AccessKey, Quota, Rule, Token, User, parse_rule

Kind = Literal["queues", "cursors", "subscriptions"]
"""How things are written down that are counted of a user for as long as they are there. A topic is
written down as a queue whose name begins with `topic:`, which no queue's does."""

Counted = Literal["queues", "topics", "cursors", "subscriptions"]
"""The quotas that they count against."""

TOPIC = "topic:"


class _User(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    rules: list[str]
    quota: Quota = Quota()
    id: str = ""


class _Rights(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    rules: list[str]
    quota: Quota = Quota()


class _Token(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    user: str
    name: str
    made_ms: int
    expires_ms: int = 0
    of: str = ""
    account: str = ""


class Rights(msgspec.Struct, frozen=True):
    """What a user may do and have since that was changed. It is kept by the user's id, so that one
    who was removed meanwhile does not come back with it."""

    rules: tuple[Rule, ...]
    quota: Quota


class Made(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who has made a queue, a topic or a cursor."""

    user: str


Known = User | Rights | Token | AccessKey | Made


class Unread(Exception):
    """A message of the queue says nothing; why."""


def user_key(name: str) -> str:
    """The key of a user's message."""
    return f"user/{name}"


def rights_key(user_id: str) -> str:
    """The key of the message that gives a user other rights."""
    return f"rights/{user_id}"


def token_key(digest: bytes) -> str:
    """The key of a token's message."""
    return f"token/{digest.hex()}"


def access_key(key_id: str) -> str:
    """The key of an access key's message."""
    return f"key/{key_id}"


def made_key(kind: Kind, name: str) -> str:
    """The key of the message that says who has made something."""
    return f"made/{kind}/{name}"


def counted_as(kind: Kind, name: str) -> Counted:
    """The quota that something counts against."""
    if kind == "queues" and name.partition("/")[2].startswith(TOPIC):
        return "topics"
    return kind


def parent_key(kind: Kind, name: str) -> str | None:
    """The key of that within which something is, and with which it goes: a cursor's queue, a
    subscription's topic."""
    if kind == "queues":
        return None
    space, _, rest = name.partition("/")
    within = rest.partition("/")[0]
    prefix = TOPIC if kind == "subscriptions" else ""
    return made_key("queues", f"{space}/{prefix}{within}")


def read_made_key(key: str) -> tuple[Kind, str] | None:
    """Kind and name of something that was made, by its key."""
    begin, _, rest = key.partition("/")
    kind, _, name = rest.partition("/")
    if begin != "made" or kind not in get_args(Kind):
        return None
    return cast("Kind", kind), name


def encode(known: Known) -> bytes:
    """What the message says."""
    if isinstance(known, User | Rights):
        rules = [str(rule) for rule in known.rules]
        if isinstance(known, Rights):
            return msgspec.json.encode(_Rights(rules, known.quota))
        return msgspec.json.encode(_User(rules, known.quota, known.id))
    if isinstance(known, Made):
        return msgspec.json.encode(known)
    account = known.account if isinstance(known, AccessKey) else ""
    made = _Token(known.user, known.name, known.made_ms, known.expires_ms, known.of, account)
    return msgspec.json.encode(made)


def decode(key: str, body: bytes) -> Known:
    """What a message under this key says.

    Raises:
        Unread: nothing; a newer version may have written it, or someone by hand.
    """
    kind, _, rest = key.partition("/")
    try:
        if kind == "user":
            user = decode_json(body, _User)
            return User(rest, tuple(map(parse_rule, user.rules)), user.quota, user.id)
        if kind == "rights":
            rights = decode_json(body, _Rights)
            return Rights(tuple(map(parse_rule, rights.rules)), rights.quota)
        if kind == "made":
            return decode_json(body, Made)
        if kind not in ("token", "key"):
            raise Unread("its key is of no kind that is known")
        found = decode_json(body, _Token)
        if kind == "key":
            times = (found.made_ms, found.expires_ms)
            return AccessKey(rest, found.user, found.name, *times, found.of, found.account)
        digest = bytes.fromhex(rest)
        if len(digest) != 32:
            raise Unread("its key has no digest of 32 bytes")
        return Token(found.user, found.name, digest, found.made_ms, found.expires_ms, found.of)
    except (msgspec.MsgspecError, Invalid, ValueError) as error:
        raise Unread(str(error)) from error
