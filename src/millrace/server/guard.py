"""Who asks, judged by the head of a request.

Rule 1: whoever is not known is refused; the words are the same whatever was wrong.
Rule 2: without credentials one is known only from the same machine, only where the operator said
so, and only where nothing hints at someone else behind the request: a proxy, or a page of another
site in a browser.
Rule 3: wrong credentials are answered so often for one address; right ones are never held up by the
wrong ones of others.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address

from millrace import limits
from millrace.errors import Exhausted, MillraceError, Unauthenticated
from millrace.server.access import Principal, parse_rule
from millrace.server.bucket import Bucket
from millrace.server.network import network_of
from millrace.server.proxy_headers import is_of_proxy
from millrace.server.roll import ANONYMOUS_RULES, Roll

DELIVERY_MARK = "x-millrace-delivery"
"""A header of every message that SNS sends to an endpoint: no server takes such a request."""


def _unknown() -> Unauthenticated:
    return Unauthenticated(
        "nobody is known by this; send a token that is good as 'authorization: Bearer mr_…'; "
        "`millrace token new USER` makes one",
        field="authorization",
    )


class Guard:
    """Finds out who asks."""

    def __init__(
        self,
        roll: Callable[[], Roll],
        now_ms: Callable[[], int],
        *,
        anonymous: bool = False,
        anonymous_rules: tuple[str, ...] = ANONYMOUS_RULES,
    ) -> None:
        self._roll = roll
        self._now_ms = now_ms
        self._failures = Failures()
        self._anonymous: Principal | None = None
        self._configured = 0
        self._seen: tuple[Roll, int, int] | None = None
        self._end_ms = 0
        self._version = 0
        self.configure(anonymous=anonymous, anonymous_rules=anonymous_rules)

    def configure(self, *, anonymous: bool, anonymous_rules: tuple[str, ...]) -> None:
        """Let others in or not who say nothing of who they are; at once."""
        self._anonymous = None
        self._configured += 1
        if anonymous:
            self._anonymous = Principal("anonymous", tuple(map(parse_rule, anonymous_rules)))

    def admit(self, headers: Mapping[str, str], peer: str = "") -> Principal | MillraceError:
        """Who asks, by the headers (names in lower case) and the address of who is connected.

        Or why nobody is let in: `Unauthenticated`, or `Exhausted` by an address that has failed too
        often of late.
        """
        return self.who(headers, peer) or self.fail(peer)

    def who(self, headers: Mapping[str, str], peer: str = "") -> Principal | None:
        """Who is known by these now; nothing is counted where nobody is."""
        given = headers.get("authorization")
        if given is None:
            if self._anonymous is not None and is_loopback(peer) and is_own(headers):
                return self._anonymous.at(peer)
            return None
        user, token = credentials(given)
        principal = self._roll().who(token, self._now_ms())
        if principal is None or user not in ("", principal.name):
            return None
        return principal.at(peer)

    def version(self) -> int:
        """Another number when someone may be known, or may do, less or more than before."""
        roll, now_ms = self._roll(), self._now_ms()
        seen = (roll, roll.version, self._configured)
        if seen != self._seen or 0 < self._end_ms <= now_ms:
            self._seen = seen
            self._end_ms = roll.next_end_ms(now_ms)
            self._version += 1
        return self._version

    def fail(self, peer: str) -> MillraceError:
        """Count wrong credentials, also such as were judged elsewhere; returns what to answer."""
        after_ms = self._failures.count(peer, self._now_ms())
        if not after_ms:
            return _unknown()
        return Exhausted(
            "too many requests from your address had no token or key that is known, or were signed "
            "with a wrong secret; come again with a good one",
            field="authorization",
            limit=limits.FAILURES_PER_SECOND,
            after_ms=after_ms,
        )


def credentials(given: str) -> tuple[str, str]:
    """User and token of an `authorization` header; of one that is none, what nobody has."""
    if len(given) > limits.CREDENTIAL_CHARS_MAX:
        return "", ""
    scheme, _, rest = given.partition(" ")
    scheme = scheme.lower()
    if scheme == "bearer":
        return "", rest.strip()
    if scheme != "basic":
        return "", ""
    try:
        user, _, token = b64decode(rest.strip(), validate=True).decode("utf-8").partition(":")
    except ValueError:
        # No base64, no ASCII, or no text within.
        return "", ""
    return user, token


def is_loopback(address: str) -> bool:
    """Whether an address is of this machine itself."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def is_own(headers: Mapping[str, str]) -> bool:
    """Whether nothing hints at someone else behind a request of this machine."""
    if any(map(is_of_proxy, headers)):
        return False
    host = headers.get("host", "")
    if not _is_loopback_host(host):
        # A name that somebody else has pointed at this machine.
        return False
    own = (f"http://{host}", f"https://{host}")
    if headers.get("origin", own[0]) not in own:
        return False
    # Browsers without fetch metadata say by this alone which page a request comes from.
    referer = headers.get("referer")
    if referer is not None and not (
        referer in own or referer.startswith(tuple(f"{o}/" for o in own))
    ):
        return False
    return headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _is_loopback_host(host: str) -> bool:
    if host.startswith("["):
        name = host[1:].partition("]")[0]
    else:
        name = host.partition(":")[0]
    return name.lower() == "localhost" or is_loopback(name)


class Failures:
    """How often each network was wrong of late; bounded, the quietest is forgotten."""

    def __init__(self, most: int = limits.FAILURE_ADDRESSES_MAX) -> None:
        self._most = most
        self._buckets: dict[str, Bucket] = {}

    def count(self, address: str, now_ms: int) -> int:
        """Count one; returns after how many milliseconds to come again, 0 if that is at once."""
        place = network_of(address)
        bucket = self._buckets.pop(place, None)
        if bucket is None:
            if len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
            bucket = Bucket(limits.FAILURES_PER_SECOND, limits.FAILURES_BURST, now_ms)
        # The order of the table is that of the last failures.
        self._buckets[place] = bucket
        return bucket.take(1, now_ms)

    def __len__(self) -> int:
        return len(self._buckets)
