"""Authentication of requests by their heads.

Rule 1: unknown senders are refused, with the same error for every cause.
Rule 2: without credentials, a request is accepted only from the same machine, only if the operator
allows it, and only without any sign of another sender behind it: a proxy, or a page of another site
in a browser.
Rule 3: failed logins are limited per network; they never delay correct logins from it.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping

from millrace import limits
from millrace.errors import Exhausted, MillraceError, Unauthenticated
from millrace.server.auth.access import Principal, parse_rule
from millrace.server.auth.index import ANONYMOUS_RULES, PrincipalIndex
from millrace.server.auth.token_bucket import TokenBucket
from millrace.server.http.proxy_headers import is_loopback, is_of_proxy, network_of

DELIVERY_MARK = "x-millrace-delivery"
"""A header of every message that SNS sends to an endpoint: no server accepts such a request."""


def _unknown() -> Unauthenticated:
    return Unauthenticated(
        "nobody is known by this; send a token that is good as 'authorization: Bearer mr_…'; "
        "`millrace token new USER` makes one",
        field="authorization",
    )


class Authenticator:
    """Authenticates requests by tokens, and counts failed logins."""

    def __init__(
        self,
        roll: Callable[[], PrincipalIndex],
        now_ms: Callable[[], int],
        *,
        anonymous: bool = False,
        anonymous_rules: tuple[str, ...] = ANONYMOUS_RULES,
    ) -> None:
        self._roll = roll
        self._now_ms = now_ms
        self._failures = FailureLimiter()
        self._anonymous: Principal | None = None
        self._configured = 0
        self._seen: tuple[PrincipalIndex, int, int] | None = None
        self._end_ms = 0
        self._version = 0
        self.configure(anonymous=anonymous, anonymous_rules=anonymous_rules)

    def configure(self, *, anonymous: bool, anonymous_rules: tuple[str, ...]) -> None:
        """Allow or refuse anonymous requests, with immediate effect."""
        self._anonymous = None
        self._configured += 1
        if anonymous:
            self._anonymous = Principal("anonymous", tuple(map(parse_rule, anonymous_rules)))

    def admit(self, headers: Mapping[str, str], peer: str = "") -> Principal | MillraceError:
        """Authenticate a request by its headers (names in lower case) and the client address.

        Returns the principal or the error: `Unauthenticated`, or `Exhausted` after too many
        failures from this network.
        """
        return self.who(headers, peer) or self.fail(peer)

    def who(self, headers: Mapping[str, str], peer: str = "") -> Principal | None:
        """Return the principal of a request, or None; does not count failures."""
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
        """Return a number that changes when any user's rights or credentials may have changed."""
        roll, now_ms = self._roll(), self._now_ms()
        seen = (roll, roll.version, self._configured)
        if seen != self._seen or 0 < self._end_ms <= now_ms:
            self._seen = seen
            self._end_ms = roll.next_end_ms(now_ms)
            self._version += 1
        return self._version

    def fail(self, peer: str) -> MillraceError:
        """Count a failed login, also one found elsewhere, and return the error to answer."""
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
    """Return user and token of an `authorization` header; empty texts if it is invalid."""
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
        # Invalid base64 or UTF-8, or not ASCII.
        return "", ""
    return user, token


def is_own(headers: Mapping[str, str]) -> bool:
    """Return True if nothing suggests that a local request was sent for someone else."""
    if any(map(is_of_proxy, headers)):
        return False
    host = headers.get("host", "")
    if not _is_loopback_host(host):
        # Another host name that resolves to this machine (DNS rebinding).
        return False
    own = (f"http://{host}", f"https://{host}")
    if headers.get("origin", own[0]) not in own:
        return False
    # Browsers without fetch metadata identify the requesting page only by this header.
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


class FailureLimiter:
    """Rate limits of failed logins by network; the least recently used one is evicted."""

    def __init__(self, most: int = limits.FAILURE_ADDRESSES_MAX) -> None:
        self._most = most
        self._buckets: dict[str, TokenBucket] = {}

    def count(self, address: str, now_ms: int) -> int:
        """Count a failure; return the milliseconds until the next attempt, or 0."""
        place = network_of(address)
        bucket = self._buckets.pop(place, None)
        if bucket is None:
            if len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
            bucket = TokenBucket(limits.FAILURES_PER_SECOND, limits.FAILURES_BURST, now_ms)
        # Keeps the table in the order of the latest failures.
        self._buckets[place] = bucket
        return bucket.take(1, now_ms)

    def __len__(self) -> int:
        return len(self._buckets)
