"""What CassieQ's callers sign, and how: a request, or the rights that go with an address.

The texts that are signed are CassieQ's (docs/guide/cassieq.md): lines of which those that say
nothing are left out. The key is the account's, decoded; the signature is HMAC-SHA-256 in base64url
without padding.

Rule 1: whatever stands in an address or a header is taken, or is none; nothing raises.
Rule 2: times are compared and signed to the second, in UTC.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from millrace import limits
from millrace.core import check
from millrace.errors import Invalid, TooLarge
from millrace.server.access import Verb

REQUEST_TIME = "x-cassieq-request-time"
"""The header that says when a request was signed."""

SIGNED = ("auth", "st", "et", "q", "sig")
"""What a signed address has behind its question mark: the rights, from when and until when they
are good, the only queue that they are good for, and the signature."""

_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})"
)


class Level(NamedTuple):
    """A right of a signed address, and what it comes to here."""

    name: str
    letter: str
    verbs: tuple[Verb, ...]


LEVELS = (
    Level("ReadMessage", "r", ("work",)),
    Level("PutMessage", "p", ("publish",)),
    Level("UpdateMessage", "u", ("work",)),
    Level("AckMessage", "a", ("work",)),
    Level("GetQueueInformation", "g", ("read", "watch")),
    Level("CreateQueue", "c", ("manage",)),
    Level("DeleteQueue", "d", ("manage",)),
)
"""In the order in which their letters are signed."""


class Rights(NamedTuple):
    """What whoever has a signed address may do, and when."""

    letters: str
    start: datetime | None = None
    end: datetime | None = None
    queue: str | None = None

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """What the letters come to."""
        return tuple(
            verb for level in LEVELS if level.letter in self.letters for verb in level.verbs
        )


def letters_of(text: str) -> str:
    """The letters of rights, each once and in their order; none, if one of them is no right."""
    known = "".join(level.letter for level in LEVELS)
    if any(letter not in known for letter in text):
        return ""
    return "".join(letter for letter in known if letter in text)


def read_time(text: str) -> datetime | None:
    """A time as ISO 8601 writes it, with its zone; None: it is none."""
    if _TIME.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        return None


def write_time(time: datetime) -> str:
    """A time as it is signed."""
    return f"{time.replace(tzinfo=None).isoformat()}Z"


def request_text(account: str, method: str, path: str, time: datetime) -> str:
    """What is signed of a request: neither its query nor its body is, in CassieQ's format."""
    return "\n".join((account, method, f"/{path.strip('/')}", write_time(time)))


def rights_text(account: str, rights: Rights) -> str:
    """What is signed of an address."""
    lines = [account, rights.letters]
    if rights.start is not None:
        lines.append(f"startTime:{write_time(rights.start)}")
    if rights.end is not None:
        lines.append(f"endTime:{write_time(rights.end)}")
    if rights.queue is not None:
        lines.append(f"q:{rights.queue}")
    return "\n".join(lines)


def sign(key: str, text: str) -> str:
    """The signature of a text by an account's key."""
    made = hmac.digest(urlsafe_b64decode(key), text.encode("utf-8", "replace"), hashlib.sha256)
    return urlsafe_b64encode(made).rstrip(b"=").decode("ascii")


def is_same(given: str, right: str) -> bool:
    """Whether two secrets are the same; how long that takes does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode("ascii"))


def read_rights(query: str) -> tuple[Rights, str] | None:
    """The rights that an address claims, and their signature; None: it can have been signed by
    nobody."""
    try:
        pairs = parse_qsl(
            query,
            keep_blank_values=True,
            strict_parsing=True,
            max_num_fields=limits.HTTP_QUERY_FIELDS_MAX,
        )
    except ValueError:
        return None
    named = [(name, value) for name, value in pairs if name in SIGNED]
    told = dict(named)
    if len(told) < len(named):
        return None
    # The plus of a zone that was not quoted reads as a space.
    begins, ends = (told.get(name, "").replace(" ", "+") for name in ("st", "et"))
    start, end = read_time(begins), read_time(ends)
    if (begins and start is None) or (ends and end is None):
        return None
    queue = told.get("q") or None
    try:
        if queue is not None:
            check.name(queue, "q")
    except (Invalid, TooLarge):
        return None
    return Rights(letters_of(told.get("auth", "")), start, end, queue), told.get("sig", "")


def write_rights(account: str, rights: Rights, key: str) -> str:
    """What goes behind the question mark of an address."""
    pairs = [("auth", rights.letters)]
    if rights.queue is not None:
        pairs.append(("q", rights.queue))
    for name, time in (("st", rights.start), ("et", rights.end)):
        if time is not None:
            pairs.append((name, write_time(time)))
    pairs.append(("sig", sign(key, rights_text(account, rights))))
    return urlencode(pairs, safe=":")
