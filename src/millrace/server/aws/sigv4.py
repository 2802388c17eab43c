"""Signatures of requests: AWS Signature Version 4, in a header or in the address.

Rule 1: what is signed is the request as it came, byte by byte: method, path, query, the headers
that it names, and the body.
Rule 2: every header that means something to AWS (`x-amz-…`) is among the signed ones, and so is the
host: nothing of a signed request can be put to another use.
Rule 3: a signature is good for a quarter of an hour around its time; one in an address for as long
as that says, a week at most.
"""

from __future__ import annotations

import hmac
import re
from calendar import timegm
from functools import lru_cache
from hashlib import sha256
from time import strptime
from typing import NamedTuple
from urllib.parse import quote, unquote

from millrace import limits
from millrace.server.aws.fault import Fault

ALGORITHM = "AWS4-HMAC-SHA256"
_STATED = re.compile(
    rf"{ALGORITHM}\s+"
    r"Credential=([^/,\s]{1,128})/([0-9]{8})/([a-z0-9-]{1,64})/([a-z0-9-]{1,64})/aws4_request\s*,"
    r"\s*SignedHeaders=([a-z0-9!#$%&'*+.^_`|~;-]{1,2000})\s*,"
    r"\s*Signature="
)
_SIGNATURE_CHARS = 64
_CREDENTIAL = re.compile(
    r"([^/]{1,128})/([0-9]{8})/([a-z0-9-]{1,64})/([a-z0-9-]{1,64})/aws4_request"
)
_TIME = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_HEX = re.compile(r"[0-9a-f]{64}")
_OWN_PREFIX = "x-amz-"
_UNRESERVED = "-_.~"


class Stated(NamedTuple):
    """What stands before a signature; all requests that a client sends in a day say the same."""

    key_id: str
    date: str
    region: str
    service: str
    names: str
    """Of the headers that are signed, in lower case, with semicolons between them."""

    @property
    def scope(self) -> str:
        """What the key is good for."""
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


class Signed(NamedTuple):
    """What a request says of its signature."""

    stated: Stated
    signature: str
    time: str
    """When it was signed, as 20260131T120000Z."""
    seconds: int = 0
    """For how long it may be used; 0: it stands in a header, and is of now."""


class SigningKey:
    """What a day's requests to a service of a region are signed with: an HMAC whose key has been
    taken in, which is three times as fast as to begin with the key each time."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(64, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))

    def sign(self, text: bytes) -> str:
        """The signature of a text."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return outer.hexdigest()


def incomplete(message: str) -> Fault:
    """What is signed cannot be told."""
    return Fault("IncompleteSignature", message, status=403)


def _mismatch(message: str) -> Fault:
    return Fault("SignatureDoesNotMatch", message, status=403)


def read_signed(headers: dict[str, str], query: str) -> Signed | None:
    """What a request says of its signature; None: it has none.

    Raises:
        Fault: it has one that cannot be read.
    """
    given = headers.get("authorization")
    if given is not None:
        if not given.startswith(ALGORITHM):
            return None
        return _in_header(headers, given)
    return _in_query(headers, query) if "X-Amz-Signature=" in query else None


def _in_header(headers: dict[str, str], given: str) -> Signed:
    given = given.rstrip()
    signature = given[-_SIGNATURE_CHARS:]
    stated = _stated(given[:-_SIGNATURE_CHARS])
    if stated is None or _HEX.fullmatch(signature) is None:
        raise incomplete(
            "Authorization header requires 'Credential', 'SignedHeaders' and 'Signature' "
            "parameters, in this order."
        )
    time = headers.get("x-amz-date", "")
    if _TIME.fullmatch(time) is None:
        raise incomplete(
            "Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header; "
            "send X-Amz-Date."
        )
    _see_headers(stated, headers)
    return Signed(stated, signature, time)


@lru_cache(maxsize=limits.AWS_STATED_MAX)
def _stated(given: str) -> Stated | None:
    found = _STATED.fullmatch(given)
    return None if found is None else Stated(*found.groups())


@lru_cache(maxsize=limits.AWS_STATED_MAX)
def _listed(names: str) -> list[str]:
    return names.split(";")


def _see_headers(stated: Stated, headers: dict[str, str]) -> None:
    names = _listed(stated.names)
    if "host" not in names:
        raise _mismatch("'Host' must be a 'SignedHeader' in the AWS Authorization.")
    for name in headers:
        if name.startswith(_OWN_PREFIX) and name not in names:
            raise _mismatch(f"{name!r} must be a 'SignedHeader' in the AWS Authorization.")


def _in_query(headers: dict[str, str], query: str) -> Signed:
    given: dict[str, str] = {}
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if name.startswith("X-Amz-"):
            if name in given:
                raise incomplete(f"{name} stands twice in the query.")
            given[name] = unquote(value)
    found = _CREDENTIAL.fullmatch(given.get("X-Amz-Credential", ""))
    seconds = given.get("X-Amz-Expires", "")
    time = given.get("X-Amz-Date", "")
    signature = given.get("X-Amz-Signature", "")
    if (
        found is None
        or given.get("X-Amz-Algorithm") != ALGORITHM
        or not (seconds.isascii() and seconds.isdigit() and len(seconds) < 8)
        or _TIME.fullmatch(time) is None
        or _HEX.fullmatch(signature) is None
        or "X-Amz-SignedHeaders" not in given
    ):
        raise incomplete(
            "A query that is signed needs X-Amz-Algorithm, X-Amz-Credential, X-Amz-Date, "
            "X-Amz-Expires, X-Amz-SignedHeaders and X-Amz-Signature."
        )
    if not 1 <= int(seconds) <= limits.AWS_PRESIGNED_SECONDS_MAX:
        raise incomplete(
            f"X-Amz-Expires must be from 1 to {limits.AWS_PRESIGNED_SECONDS_MAX} seconds."
        )
    key_id, date, region, service = found.groups()
    stated = Stated(key_id, date, region, service, given["X-Amz-SignedHeaders"].lower())
    _see_headers(stated, headers)
    return Signed(stated, signature, time, int(seconds))


def see_time(signed: Signed, now: float) -> None:
    """See that the signature is of now.

    Raises:
        Fault: it is too old, of the future, or of another day than its key.
    """
    date = signed.stated.date
    if not signed.time.startswith(date):
        raise _mismatch(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from "
            f"HTTP: '{date}' != '{signed.time[:8]}', from '{signed.time}'."
        )
    at = _seconds(signed.time)
    skew = limits.AWS_SKEW_SECONDS_MAX
    latest = at + (signed.seconds or skew)
    if now > latest:
        raise _mismatch(f"Signature expired: {signed.time} is too long ago for the server's clock.")
    if at > now + skew:
        raise _mismatch(f"Signature not yet current: {signed.time} is after the server's clock.")


@lru_cache(maxsize=64)
def _seconds(time: str) -> int:
    try:
        return timegm(strptime(time, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise incomplete(f"X-Amz-Date {time} is no time.") from None


def signing_key(secret: str, scope: str) -> SigningKey:
    """What requests of a scope are signed with by whoever has the secret."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return SigningKey(key)


def signature_of(
    signed: Signed,
    key: SigningKey,
    method: str,
    path: str,
    query: str,
    headers: dict[str, str],
    body: bytes | bytearray | memoryview,
) -> str:
    """The signature that the request should have.

    Raises:
        Fault: a header that it names as signed is not there.
    """
    stated = signed.stated
    lines = ""
    for name in _listed(stated.names):
        value = headers.get(name)
        if value is None:
            raise _mismatch(f"The header {name!r} is signed, and was not sent.")
        if "  " in value or value != value.strip():
            value = " ".join(value.split())
        lines += f"{name}:{value}\n"
    canonical = (
        f"{method}\n{path if path == '/' else _canonical_path(path)}\n"
        f"{_canonical_query(query) if query else ''}\n{lines}\n{stated.names}\n"
        f"{sha256(body).hexdigest()}"
    )
    digest = sha256(canonical.encode("latin-1")).hexdigest()
    return key.sign(f"{ALGORITHM}\n{signed.time}\n{stated.scope}\n{digest}".encode())


def see_signature(expected: str, signed: Signed) -> None:
    """See that the signature is the expected one.

    Raises:
        Fault: it is not.
    """
    if not hmac.compare_digest(expected, signed.signature):
        raise _mismatch(
            "The request signature we calculated does not match the signature you provided. Check "
            "your AWS Secret Access Key and signing method. Consult the service documentation for "
            "details."
        )


def _canonical_path(path: str) -> str:
    """Return a path as it is signed; one that is not normal was refused when it was read."""
    return quote(path, safe=f"/{_UNRESERVED}", encoding="latin-1")


def _canonical_query(query: str) -> str:
    pairs: list[tuple[str, str]] = []
    for pair in query.split("&"):
        if not pair:
            continue
        name, _, value = pair.partition("=")
        name = _encoded(name)
        if name != "X-Amz-Signature":
            pairs.append((name, _encoded(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _encoded(text: str) -> str:
    """A part of a query, written in the one way that is signed.

    A plus is a space, as it is to whoever reads the form: what is signed is what is done.
    """
    plain = unquote(text.replace("+", " "), encoding="latin-1")
    return quote(plain, safe=_UNRESERVED, encoding="latin-1")
