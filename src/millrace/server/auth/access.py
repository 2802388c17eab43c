"""Access control: users, their rules, and the secrets that authenticate them.

Rule 1: access is denied unless a rule allows it, and a rule that denies overrides all that allow.
Rule 2: one function decides for every verb on every resource: `judge`, with its short form `may`.
Rule 3: in the space `system` every verb also needs `admin`.
Rule 4: a token is never stored, only its digest.
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
"""Publish messages; lease and settle them; read without settling; see metrics but no message;
create, change and delete queues and topics; administer users and the server."""

VERBS: tuple[Verb, ...] = get_args(Verb)
SYSTEM = "system"
"""The space of the server's own queues: users, audit."""

TOKEN_PREFIX = "mr_"
TOKEN_BYTES = 32
_RULE = re.compile(r"(allow|deny)\s+([a-z,*]+)\s+([A-Za-z0-9_.*-]+)/([A-Za-z0-9_.*-]+)")


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """Allows or denies verbs on the queues and topics whose names match."""

    allow: bool
    verbs: tuple[Verb, ...]
    space: str
    name: str

    def __str__(self) -> str:
        verbs = "*" if self.verbs == VERBS else ",".join(self.verbs)
        return f"{'allow' if self.allow else 'deny'} {verbs} {self.space}/{self.name}"


def parse_rule(text: str) -> Rule:
    """Parse a rule such as `allow publish,work default/orders-*`.

    Raises:
        Invalid: the text is not a rule.
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
    """A decision, with the rule that made it; None if no rule allows the action."""

    allowed: bool
    rule: Rule | None
    why: str


def judge(rules: tuple[Rule, ...], verb: Verb, space: str, name: str) -> Ruling:
    """Decide if these rules allow a verb on a queue or topic, and give the reason.

    The order of `rules` has no effect.
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
    """Decide if these rules allow a verb on the whole server, such as a backup.

    That needs a rule that allows the verb on `*/*`, and no rule that denies anything: an operation
    on everything includes the denied parts.
    """
    denying = next((rule for rule in rules if not rule.allow), None)
    if denying is not None:
        why = "it is about everything on the server, and a rule denies some of that"
        return Ruling(False, denying, why)
    return judge(rules, verb, "*", "*")


def may(rules: tuple[Rule, ...], verb: Verb, space: str, name: str) -> bool:
    """Return whether these rules allow a verb on a queue or topic."""
    return judge(rules, verb, space, name).allowed


def narrowed(
    rules: tuple[Rule, ...], verbs: tuple[Verb, ...], space: str, name: str = "*"
) -> tuple[Rule, ...]:
    """Return rules that allow at most these verbs in one space, or on one queue in it."""
    found: list[Rule] = []
    for rule in rules:
        if not rule.allow:
            found.append(rule)
        elif _fits(rule.space, space) and (name == "*" or _fits(rule.name, name)):
            both = tuple(verb for verb in rule.verbs if verb in verbs)
            found.append(Rule(True, both, space, rule.name if name == "*" else name))
    return tuple(found)


def _fits(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern; * matches any characters.

    The parts between stars are searched in order, each at the earliest position: no pattern takes
    exponential time.
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


# --- Principals and secrets ----------------------------------------------------------------------


class Quota(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of one user; 0: not set, the default applies; in the default, 0 means unlimited."""

    requests: int | float = 0
    """Per second, on average; after a pause a burst of twice the number."""
    bytes: int = 0
    """Bytes of request and response bodies per second; after a pause a burst of twice the number.
    Rows that are larger in storage than in the request count with their stored size."""
    queues: int = 0
    """Queues that the user created and that still exist."""
    in_flight: int = 0
    """Messages that are leased to the user."""
    cursors: int = 0
    """Cursors that the user created and that still exist."""
    pins: int = 0
    """Snapshots that are pinned for the user."""
    topics: int = 0
    """Topics that the user created and that still exist."""
    subscriptions: int = 0
    """Subscriptions that the user created and that still exist."""
    sessions: int = 0
    """Open sessions of the user."""
    streams: int = 0
    """Event streams that are sent to the user."""
    jobs: int = 0
    """Running redrives and move tasks of the user."""


UNBOUNDED = Quota()

DEFAULT_QUOTA = Quota(
    queues=limits.USER_QUEUES_MAX,
    topics=limits.USER_TOPICS_MAX,
    subscriptions=limits.USER_SUBSCRIPTIONS_MAX,
    sessions=limits.USER_SESSIONS_MAX,
    streams=limits.USER_STREAMS_MAX,
    jobs=limits.USER_JOBS_MAX,
)
"""Default quota, used where neither the settings of the user nor those of the server give one."""


class User(msgspec.Struct, frozen=True):
    """A user, authenticated by tokens or keys."""

    name: str
    rules: tuple[Rule, ...] = ()
    quota: Quota = UNBOUNDED
    id: str = ""
    """Unique id, new each time that a user of this name is created: secrets of an earlier user of
    the name stay invalid."""


class Principal:
    """The authenticated sender of a request, and their rights.

    Decisions are cached and shared by all requests of a user until the user changes.
    """

    __slots__ = ("_known", "name", "quota", "rules", "where")

    def __init__(
        self, name: str, rules: tuple[Rule, ...], where: str = "", quota: Quota = UNBOUNDED
    ) -> None:
        self.name = name
        self.rules = rules
        self.where = where
        """Client address."""
        self.quota = quota
        self._known: dict[tuple[Verb, str, str], bool] = {}

    def at(self, where: str) -> Principal:
        """Return a copy with a client address; it shares the cache of decisions."""
        other = Principal(self.name, self.rules, where, self.quota)
        other._known = self._known
        return other

    def may(self, verb: Verb, space: str, name: str) -> bool:
        """Return whether the user has this right; see `judge`."""
        asked = (verb, space, name)
        found = self._known.get(asked)
        if found is None:
            if len(self._known) >= limits.RULINGS_KEPT_MAX:
                self._known.clear()
            found = self._known[asked] = judge(self.rules, verb, space, name).allowed
        return found

    def may_whole(self, verb: Verb) -> bool:
        """Return whether the user has this right on the whole server; see `judge_whole`."""
        return judge_whole(self.rules, verb).allowed

    def judge(self, verb: Verb, space: str, name: str) -> Ruling:
        """Decide as `may`, and give the reason."""
        return judge(self.rules, verb, space, name)

    def __repr__(self) -> str:
        return f"<Principal {self.name}>"


class Token(msgspec.Struct, frozen=True):
    """The stored part of a token: its digest, not its text."""

    user: str
    name: str
    digest: bytes
    made_ms: int
    expires_ms: int = 0
    """0: never."""
    of: str = ""
    """User id."""

    @property
    def id(self) -> str:
        """Short id for people: the beginning of its digest."""
        return self.digest[:6].hex()


class AccessKey(msgspec.Struct, frozen=True):
    """The stored part of an access key, without its secret."""

    id: str
    user: str
    name: str
    made_ms: int
    expires_ms: int = 0
    of: str = ""
    account: str = ""
    """AWS account number, twelve digits; empty: the one of the server's settings."""


def make_token(secret: bytes) -> str:
    """Return the text of a token, from 32 random bytes."""
    assert len(secret) == TOKEN_BYTES
    return TOKEN_PREFIX + urlsafe_b64encode(secret).rstrip(b"=").decode()


_TOKEN = re.compile(rf"{TOKEN_PREFIX}[A-Za-z0-9_-]{{43}}")


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token; only its digest shows that it is valid."""
    return _TOKEN.fullmatch(text) is not None


def digest_of(token: str) -> bytes:
    """Return the digest of a token. Tokens are 256 random bits, so a plain hash is safe."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


# --- AWS account numbers that identify users to clients of SQS and SNS ---------------------------

_ACCOUNT = re.compile(r"[0-9]{12}")


def is_account(text: str) -> bool:
    """Return whether a text is the number of an account: twelve digits."""
    return _ACCOUNT.fullmatch(text) is not None
