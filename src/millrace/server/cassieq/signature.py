"""CassieQ's signatures of requests and of addresses with rights.

The signed texts are CassieQ's (docs/guide/cassieq.md): lines, without those of absent values. The
key is the account's, decoded; the signature is HMAC-SHA-256 in base64url without padding.

Rule 1: parsers of addresses and headers return the value or None; they never raise.
Rule 2: times are compared and signed in UTC, to the second.
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
from millrace.core import validate
from millrace.errors import Invalid, TooLarge
from millrace.server.auth.access import Verb

REQUEST_TIME = "x-cassieq-request-time"
"""The header with the time at which a request was signed."""

SIGNED = ("auth", "st", "et", "q", "sig")
"""The query parameters of a signed address: rights, start and end of validity, the only queue that
it is valid for, and the signature.
"""

_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?(Z|[+-][0-9]{2}:[0-9]{2})"
)


class Level(NamedTuple):
    """A right of a signed address, with the verbs that it grants here."""

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


class SignedRights(NamedTuple):
    """The rights of a signed address, and the time and queue for which they are valid."""

    letters: str
    start: datetime | None = None
    end: datetime | None = None
    queue: str | None = None

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """The verbs that the letters grant."""
        return tuple(
            verb for level in LEVELS if level.letter in self.letters for verb in level.verbs
        )


def letters_of(text: str) -> str:
    """Return the letters without repetitions, in signing order; an empty text if one of them is
    invalid.
    """
    known = "".join(level.letter for level in LEVELS)
    if any(letter not in known for letter in text):
        return ""
    return "".join(letter for letter in known if letter in text)


def read_time(text: str) -> datetime | None:
    """Parse a time in ISO 8601 with its zone; return None if the text is not one."""
    if _TIME.fullmatch(text) is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC).replace(microsecond=0)
    except (ValueError, OverflowError):
        return None


def write_time(time: datetime) -> str:
    """Return a time in the form that is signed."""
    return f"{time.replace(tzinfo=None).isoformat()}Z"


def request_text(account: str, method: str, path: str, time: datetime) -> str:
    """Return the signed text of a request; CassieQ's format covers neither query nor body."""
    return "\n".join((account, method, f"/{path.strip('/')}", write_time(time)))


def rights_text(account: str, rights: SignedRights) -> str:
    """Return the signed text of an address."""
    lines = [account, rights.letters]
    if rights.start is not None:
        lines.append(f"startTime:{write_time(rights.start)}")
    if rights.end is not None:
        lines.append(f"endTime:{write_time(rights.end)}")
    if rights.queue is not None:
        lines.append(f"q:{rights.queue}")
    return "\n".join(lines)


def sign(key: str, text: str) -> str:
    """Return a text's signature under an account's key."""
    made = hmac.digest(urlsafe_b64decode(key), text.encode("utf-8", "replace"), hashlib.sha256)
    return urlsafe_b64encode(made).rstrip(b"=").decode("ascii")


def is_same(given: str, right: str) -> bool:
    """Compare two secrets in constant time; return True if they are equal."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode("ascii"))


def read_rights(query: str) -> tuple[SignedRights, str] | None:
    """Parse the rights that an address claims and their signature; return None if the query is
    malformed.
    """
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
    params = dict(named)
    if len(params) < len(named):
        return None
    # An unquoted plus of a time zone is decoded as a space.
    begins, ends = (params.get(name, "").replace(" ", "+") for name in ("st", "et"))
    start, end = read_time(begins), read_time(ends)
    if (begins and start is None) or (ends and end is None):
        return None
    queue = params.get("q") or None
    try:
        if queue is not None:
            validate.name(queue, "q")
    except (Invalid, TooLarge):
        return None
    return SignedRights(letters_of(params.get("auth", "")), start, end, queue), params.get(
        "sig", ""
    )


def write_rights(account: str, rights: SignedRights, key: str) -> str:
    """Return the signed query string of an address."""
    pairs = [("auth", rights.letters)]
    if rights.queue is not None:
        pairs.append(("q", rights.queue))
    for name, time in (("st", rights.start), ("et", rights.end)):
        if time is not None:
            pairs.append((name, write_time(time)))
    pairs.append(("sig", sign(key, rights_text(account, rights))))
    return urlencode(pairs, safe=":")
