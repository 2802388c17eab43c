"""Authentication and error responses of CassieQ's API.

Accepted credentials: `Authorization: Key k`, `Authorization: Signed s` with the time of the
request, a signed address (`signature`), and the tokens of the native API.

Rule 1: the account is the one in the path; the key of another account is not accepted.
Rule 2: failed authentication of every kind counts towards the authenticator's limit.
Rule 3: a signed address has the rights of its letters, as far as the account itself has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec

from millrace import limits
from millrace.errors import Denied, Exhausted, Gone, MillraceError, Retry, Unauthenticated
from millrace.server.auth.access import AccessKey, Principal, narrowed
from millrace.server.auth.authenticator import Authenticator
from millrace.server.auth.index import NOBODY, PrincipalIndex
from millrace.server.auth.store import UserStore
from millrace.server.cassieq.route_table import LETTERS, route_of
from millrace.server.cassieq.signature import (
    REQUEST_TIME,
    is_same,
    read_rights,
    read_time,
    request_text,
    rights_text,
    sign,
)
from millrace.server.http.parser import Request
from millrace.server.http.response import Response
from millrace.server.web.problem import status_of

_CHALLENGE = 'Key realm="millrace", Signed realm="millrace", Bearer realm="millrace"'
_REASONS = {404: "NotFound", 409: "Conflict"}


class ErrorOut(msgspec.Struct, frozen=True):
    """An error response of CassieQ's API."""

    reason: str
    operation: str
    message: str


class CassieqApi:
    """CassieQ's API protocol: authenticates its requests and renders its errors."""

    proves_later = False

    def __init__(self, guard: Authenticator, book: UserStore) -> None:
        self._guard = guard
        self._keyring = Keyring(book)
        self._now_ms: Callable[[], int] = book.now_ms

    def admit(
        self, request: Request, params: dict[str, str], peer: str
    ) -> Principal | MillraceError:
        found = self._judge(request, params, peer, is_new=True)
        if isinstance(found, Unauthenticated):
            counted = self._guard.fail(peer)
            return counted if isinstance(counted, Exhausted) else found
        return found

    def who(self, request: Request, params: dict[str, str], peer: str) -> Principal | None:
        # The time of the request was checked when it arrived, and may have run out since.
        found = self._judge(request, params, peer, is_new=False)
        return found if isinstance(found, Principal) else None

    def _judge(
        self, request: Request, params: dict[str, str], peer: str, *, is_new: bool
    ) -> Principal | Denied | Unauthenticated:
        given = request.headers.get("authorization")
        account = params.get("space")
        if account is not None and given is None and "sig=" in request.query:
            return self._by_address(account, request, peer, is_new=is_new)
        if account is not None and given is not None:
            scheme, _, rest = given.partition(" ")
            scheme, rest = scheme.lower(), rest.strip()
            if len(given) > limits.CREDENTIAL_CHARS_MAX:
                return _unknown()
            if scheme == "key":
                found = self._keyring.find(account, lambda key: is_same(rest, key))
                return _unknown() if found is None else found.at(peer)
            if scheme == "signed":
                return self._by_signature(account, request, rest, peer, is_new=is_new)
        return self._guard.who(request.headers, peer) or _unknown(takes_key=account is not None)

    def _by_signature(
        self, account: str, request: Request, signature: str, peer: str, *, is_new: bool
    ) -> Principal | Unauthenticated:
        time = read_time(request.headers.get(REQUEST_TIME, ""))
        if time is None:
            return _unknown()
        text = request_text(account, request.method, request.path, time)
        found = self._keyring.find(account, lambda key: is_same(signature, sign(key, text)))
        if found is None:
            return _unknown()
        apart_ms = abs(self._now_ms() - int(time.timestamp() * 1000))
        # The request's time has a resolution of one second.
        if is_new and apart_ms >= limits.CASSIEQ_SKEW_MS_MAX + 1000:
            seconds = limits.CASSIEQ_SKEW_MS_MAX // 1000
            return _too_late(
                f"the signature is right, but its time is more than {seconds} s from the server's; "
                "sign each request when it is sent, and set the clock"
            )
        return found.at(peer)

    def _by_address(
        self, account: str, request: Request, peer: str, *, is_new: bool
    ) -> Principal | Denied | Unauthenticated:
        read = read_rights(request.query)
        if read is None:
            return _unknown()
        rights, signature = read
        text = rights_text(account, rights)
        found = self._keyring.find(account, lambda key: is_same(signature, sign(key, text)))
        if found is None:
            return _unknown()
        now = self._now_ms() / 1000
        if is_new and rights.start is not None and now < rights.start.timestamp():
            return _too_late("the signature of this address is right, but not good yet")
        if is_new and rights.end is not None and now >= rights.end.timestamp():
            return _too_late("the signature of this address is right, but its time is over")
        route = route_of(request.method, request.path)
        needed = None if route is None else LETTERS.get((route.method, route.path))
        if needed is None or needed not in rights.letters:
            return Denied(
                f"this address was signed for {rights.letters or 'nothing'!r}, and what is asked "
                f"for takes {needed or 'a token'!r}; ask for another one",
                field="auth",
            )
        rules = narrowed(found.rules, rights.verbs, account, rights.queue or "*")
        return Principal(found.name, rules, peer, found.quota)

    def answer_error(self, request: Request, error: MillraceError) -> Response:
        route = route_of(request.method, request.path)
        name = "" if route is None else route.name
        # To CassieQ's callers, a lease whose record has expired is a stale one.
        status = 409 if isinstance(error, Gone) else status_of(error)
        operation = "".join(word.capitalize() for word in name.split("_"))
        params = ErrorOut(_REASONS.get(status, "Error"), operation, error.message)
        headers: dict[str, str] = {}
        if isinstance(error, Retry):
            headers["retry-after"] = str(max(1, math.ceil(error.after_ms / 1000)))
        if status == 401:
            headers["www-authenticate"] = _CHALLENGE
        return Response(status, msgspec.json.encode(params), headers=headers)


def _unknown(*, takes_key: bool = True) -> Unauthenticated:
    way = "a token that is good as 'authorization: Bearer mr_…'"
    if takes_key:
        way = (
            "'authorization: Key …' with a key of the account, 'authorization: Signed …' with the "
            f"time, an address that was signed, or {way}"
        )
    return Unauthenticated(f"nobody is known by this; send {way}", field="authorization")


def _too_late(text: str) -> Unauthenticated:
    return Unauthenticated(text, field="authorization")


# --- The keys of accounts: access keys of users, looked up by the user's name --------------------

Proves = Callable[[str], bool]
"""Returns True if a secret verifies the credentials that were sent."""


class Keyring:
    """Finds the account whose key verifies a credential.

    A lookup for an unknown account takes as long as for an account with two keys, the usual number,
    so that response times do not reveal which accounts exist.
    """

    def __init__(self, book: UserStore) -> None:
        self._book = book
        self._seen: tuple[PrincipalIndex, int] | None = None
        self._keys: dict[str, list[AccessKey]] = {}

    def find(self, account: str, proves: Proves) -> Principal | None:
        """Return the account's principal if one of its keys verifies the credential; all keys are
        tried.
        """
        found: Principal | None = None
        for secret, principal in self.secrets(account):
            if proves(secret):
                found = principal
        return found

    def secrets(self, account: str) -> Iterator[tuple[str, Principal | None]]:
        """Yield the secrets of an account's valid keys with its principal, or two dummy secrets."""
        roll, now_ms = self._book.roll, self._book.now_ms()
        is_known = False
        for key in self._of(roll, account):
            known = roll.key(key.id, now_ms)
            if known is not None:
                is_known = True
                yield self._book.secret_of(key.id), known[1]
        for _ in range(0 if is_known else 2):
            yield self._book.secret_of(NOBODY), None

    def _of(self, roll: PrincipalIndex, account: str) -> list[AccessKey]:
        seen = (roll, roll.version)
        if self._seen != seen:
            self._keys = {}
            for key in roll.access_keys():
                self._keys.setdefault(key.user, []).append(key)
            self._seen = seen
        return self._keys.get(account, [])
