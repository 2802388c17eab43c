"""Who may do what: users, their rules, and the secrets by which they are known.

Rule 1: what no rule allows is denied, and a rule that denies wins over all that allow.
Rule 2: there is one function that decides, for every verb on every resource: `judge`, and `may`,
which is its short form.
Rule 3: nothing in the space `system` is to be had without `admin`, whatever the verb.
Rule 4: a token is never kept, only its digest.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import msgspec

from millrace import limits
from millrace.errors import Invalid

Verb = Literal["publish", "work", "read", "watch", "manage", "admin"]
"""Publish messages; lease and end them; read without ending; see what is counted, and no message;
make, change, end queues and topics; care for users and for the whole."""

VERBS: tuple[Verb, ...] = get_args(Verb)
SYSTEM = "system"
"""The space of what the server itself keeps: users, audit."""

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
            f"{text[:200]!r} is no rule; write one as 'allow publish,work default/orders-*'",
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
    for pattern, most in (
        (found[3], limits.NAME_CHARS_MAX),
        (found[4], limits.TOPIC_NAME_CHARS_MAX),
    ):
        if len(pattern) > most:
            raise Invalid(
                f"a pattern has up to {most} characters, as a name has",
                field="rule",
                limit=most,
            )
    return Rule(found[1] == "allow", verbs, found[3], found[4])


class Ruling(NamedTuple):
    """Whether it may be done, and by which rule; without one nothing allows it."""

    allowed: bool
    rule: Rule | None
    why: str


def judge(rules: tuple[Rule, ...], verb: Verb, space: str, name: str) -> Ruling:
    """Whether someone with these rules may do this, and why.

    What `rules` say does not depend on their order.
    """
    needed: tuple[Verb, ...] = (verb,)
    if space == SYSTEM and verb != "admin":
        needed = (verb, "admin")
    allowing: Rule | None = None
    for rule in rules:
        if not (_fits(rule.space, space) and _fits(rule.name, name)):
            continue
        if not rule.allow and any(one in rule.verbs for one in needed):
            return Ruling(False, rule, "a rule that denies wins over all that allow")
        if rule.allow and needed[-1] in rule.verbs and allowing is None:
            allowing = rule
    if allowing is not None:
        return Ruling(True, allowing, "a rule allows it, and none denies it")
    if len(needed) > 1:
        return Ruling(False, None, f"whatever is done in the space {SYSTEM!r} takes admin there")
    return Ruling(False, None, "no rule allows it")


def judge_whole(rules: tuple[Rule, ...], verb: Verb) -> Ruling:
    """Whether someone with these rules may do this with the whole server, as a backup does.

    It takes a rule that allows the verb on `*/*`, and none that denies anything: what is done with
    everything is done with what is denied, too.
    """
    denying = next((rule for rule in rules if not rule.allow), None)
    if denying is not None:
        why = "it is about everything on the server, and a rule denies some of that"
        return Ruling(False, denying, why)
    return judge(rules, verb, "*", "*")


def may(rules: tuple[Rule, ...], verb: Verb, space: str, name: str) -> bool:
    """Whether someone with these rules may do this."""
    return judge(rules, verb, space, name).allowed


def narrowed(
    rules: tuple[Rule, ...], verbs: tuple[Verb, ...], space: str, name: str = "*"
) -> tuple[Rule, ...]:
    """What rules allow of these verbs in one space, or of one queue in it, and no more."""
    found: list[Rule] = []
    for rule in rules:
        if not rule.allow:
            found.append(rule)
        elif _fits(rule.space, space) and (name == "*" or _fits(rule.name, name)):
            both = tuple(verb for verb in rule.verbs if verb in verbs)
            found.append(Rule(True, both, space, rule.name if name == "*" else name))
    return tuple(found)


def _fits(pattern: str, name: str) -> bool:
    """Whether a name fits; * stands for any part of it.

    The parts between stars are found one after the other, each as early as it can be: no pattern,
    however contrived, takes long.
    """
    if "*" not in pattern:
        return pattern == name
    first, *middle, last = _parts(pattern)
    if len(name) < len(first) + len(last):
        return False
    if not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


@lru_cache(maxsize=4096)
def _parts(pattern: str) -> list[str]:
    return pattern.split("*")


# --- Who is known --------------------------------------------------------------------------------


class Quota(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one principal may have; 0 is without a bound."""

    requests: int | float = 0
    """A second, on average; twice as many at once after a pause."""
    bytes: int = 0
    """Bytes of bodies a second, sent and received; twice as many at once after a pause. Rows that
    have more bytes as they are stored than as they were sent count as such."""
    queues: int = 0
    """Queues that they have made and that are still there."""
    in_flight: int = 0
    """Messages that are leased to them and not ended."""
    cursors: int = 0
    """Cursors that they have made and that are still there."""
    pins: int = 0
    """Snapshots that are held for them."""
    topics: int = 0
    """Topics that they have made and that are still there."""
    subscriptions: int = 0
    """Subscriptions that they have made and that are still there."""
    sessions: int = 0
    """Sessions that are open for them."""
    streams: int = 0
    """Streams of events that are sent to them."""
    jobs: int = 0
    """Redrives and move tasks that run for them."""


UNBOUNDED = Quota()

DEFAULT_QUOTA = Quota(
    queues=limits.USER_QUEUES_MAX,
    topics=limits.USER_TOPICS_MAX,
    subscriptions=limits.USER_SUBSCRIPTIONS_MAX,
    sessions=limits.USER_SESSIONS_MAX,
    streams=limits.USER_STREAMS_MAX,
    jobs=limits.USER_JOBS_MAX,
)
"""What a user may have of whom, and of the server's own default, nothing else is said."""


class User(msgspec.Struct, frozen=True):
    """Someone who is known by tokens or keys."""

    name: str
    rules: tuple[Rule, ...] = ()
    quota: Quota = UNBOUNDED
    id: str = ""
    """Another one each time that a user of the name is made: their secrets are not those of whoever
    had the name before."""


class Principal:
    """Who asks, and what they may do.

    What was found out about one is shared by all requests of it, until something of it changes.
    """

    __slots__ = ("_known", "name", "quota", "rules", "where")

    def __init__(
        self, name: str, rules: tuple[Rule, ...], where: str = "", quota: Quota = UNBOUNDED
    ) -> None:
        self.name = name
        self.rules = rules
        self.where = where
        """The address that they ask from."""
        self.quota = quota
        self._known: dict[tuple[Verb, str, str], bool] = {}

    def at(self, where: str) -> Principal:
        """The same one, asking from an address."""
        other = Principal(self.name, self.rules, where, self.quota)
        other._known = self._known
        return other

    def may(self, verb: Verb, space: str, name: str) -> bool:
        """Whether they may do this; see `judge`."""
        asked = (verb, space, name)
        found = self._known.get(asked)
        if found is None:
            if len(self._known) >= limits.RULINGS_KEPT_MAX:
                self._known.clear()
            found = self._known[asked] = judge(self.rules, verb, space, name).allowed
        return found

    def may_whole(self, verb: Verb) -> bool:
        """Whether they may do this with the whole server; see `judge_whole`."""
        return judge_whole(self.rules, verb).allowed

    def judge(self, verb: Verb, space: str, name: str) -> Ruling:
        """As `may`, with the reason."""
        return judge(self.rules, verb, space, name)

    def __repr__(self) -> str:
        return f"<Principal {self.name}>"


class Token(msgspec.Struct, frozen=True):
    """What is kept of a token."""

    user: str
    name: str
    digest: bytes
    made_ms: int
    expires_ms: int = 0
    """0: never."""
    of: str = ""
    """The id of the user."""

    @property
    def id(self) -> str:
        """By which people tell it from others: the beginning of its digest."""
        return self.digest[:6].hex()


class AccessKey(msgspec.Struct, frozen=True):
    """What is kept of an access key; its secret is not."""

    id: str
    user: str
    name: str
    made_ms: int
    expires_ms: int = 0
    of: str = ""
    account: str = ""
    """Of AWS, twelve digits; empty: that of the server's settings."""


def make_token(secret: bytes) -> str:
    """The text of a token, from 32 random bytes."""
    assert len(secret) == TOKEN_BYTES
    return TOKEN_PREFIX + urlsafe_b64encode(secret).rstrip(b"=").decode()


_TOKEN = re.compile(rf"{TOKEN_PREFIX}[A-Za-z0-9_-]{{43}}")


def is_token(text: str) -> bool:
    """Whether a text has the shape of a token; whether it is one, only its digest tells."""
    return _TOKEN.fullmatch(text) is not None


def digest_of(token: str) -> bytes:
    """By which a token is known; of 256 random bits a plain hash tells nothing."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
