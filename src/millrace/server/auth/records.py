"""Encoding of users, tokens and keys as messages of `system/access` (docs/formats/access.md).

Rule: a message that cannot be decoded makes nobody known. It is not skipped silently: the reason is
reported to the reader.
"""

from __future__ import annotations

from typing import Literal, cast, get_args

import msgspec

from millrace.decoding import decode_json
from millrace.errors import Invalid
from millrace.server.auth.access import (
    AccessKey,
    Quota,
    Rule,
    Token,
    User,
    parse_rule,
)

Kind = Literal["queues", "cursors", "subscriptions"]
"""Kinds in creation records, of objects that count against a user's quotas while they exist. A
topic is recorded as a queue whose name begins with `topic:`, which no queue name does."""

Counted = Literal["queues", "topics", "cursors", "subscriptions"]
"""The quotas against which created objects count."""

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


class UserRights(msgspec.Struct, frozen=True):
    """Rules and quota of a user since their latest change. They are stored by user id, so that a
    user who was removed at the same time does not reappear."""

    rules: tuple[Rule, ...]
    quota: Quota


class CreationRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Records the user who created a queue, topic, cursor or subscription."""

    user: str


AccessRecord = User | UserRights | Token | AccessKey | CreationRecord


class UndecodableRecord(Exception):
    """A message of the queue could not be decoded; the text is the reason."""


def user_key(name: str) -> str:
    """Return the key of a user's message."""
    return f"user/{name}"


def rights_key(user_id: str) -> str:
    """Return the key of the message with a user's changed rights."""
    return f"rights/{user_id}"


def token_key(digest: bytes) -> str:
    """Return the key of a token's message."""
    return f"token/{digest.hex()}"


def access_key(key_id: str) -> str:
    """Return the key of an access key's message."""
    return f"key/{key_id}"


def made_key(kind: Kind, name: str) -> str:
    """Return the key of the message that records the creator of an object."""
    return f"made/{kind}/{name}"


def counted_as(kind: Kind, name: str) -> Counted:
    """Return the quota against which an object counts."""
    if kind == "queues" and name.partition("/")[2].startswith(TOPIC):
        return "topics"
    return kind


def parent_key(kind: Kind, name: str) -> str | None:
    """Return the key of the object that contains another one and is deleted with it: the queue of a
    cursor, the topic of a subscription; None for queues and topics."""
    if kind == "queues":
        return None
    space, _, rest = name.partition("/")
    within = rest.partition("/")[0]
    prefix = TOPIC if kind == "subscriptions" else ""
    return made_key("queues", f"{space}/{prefix}{within}")


def read_made_key(key: str) -> tuple[Kind, str] | None:
    """Return kind and name of an object from the key of its creation record, or None."""
    begin, _, rest = key.partition("/")
    kind, _, name = rest.partition("/")
    if begin != "made" or kind not in get_args(Kind):
        return None
    return cast("Kind", kind), name


def encode(known: AccessRecord) -> bytes:
    """Encode the body of a message."""
    if isinstance(known, User | UserRights):
        rules = [str(rule) for rule in known.rules]
        if isinstance(known, UserRights):
            return msgspec.json.encode(_Rights(rules, known.quota))
        return msgspec.json.encode(_User(rules, known.quota, known.id))
    if isinstance(known, CreationRecord):
        return msgspec.json.encode(known)
    account = known.account if isinstance(known, AccessKey) else ""
    made = _Token(known.user, known.name, known.made_ms, known.expires_ms, known.of, account)
    return msgspec.json.encode(made)


def decode(key: str, body: bytes) -> AccessRecord:
    """Decode the message of a key.

    Raises:
        Unread: it is invalid; a newer version may have written it, or a person by hand.
    """
    kind, _, rest = key.partition("/")
    try:
        if kind == "user":
            user = decode_json(body, _User)
            return User(rest, tuple(map(parse_rule, user.rules)), user.quota, user.id)
        if kind == "rights":
            rights = decode_json(body, _Rights)
            return UserRights(tuple(map(parse_rule, rights.rules)), rights.quota)
        if kind == "made":
            return decode_json(body, CreationRecord)
        if kind not in ("token", "key"):
            raise UndecodableRecord("its key is of no kind that is known")
        found = decode_json(body, _Token)
        if kind == "key":
            times = (found.made_ms, found.expires_ms)
            return AccessKey(rest, found.user, found.name, *times, found.of, found.account)
        digest = bytes.fromhex(rest)
        if len(digest) != 32:
            raise UndecodableRecord("its key has no digest of 32 bytes")
        return Token(found.user, found.name, digest, found.made_ms, found.expires_ms, found.of)
    except (msgspec.MsgspecError, Invalid, ValueError) as error:
        raise UndecodableRecord(str(error)) from error
