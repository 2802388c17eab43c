"""AWS Signature Version 4: verification of signatures in a header or in a presigned URL.

Rule 1: the signature covers the request as received, byte by byte: method, path, query, the headers
that it names, and the body.
Rule 2: all `x-amz-…` headers and the host must be signed, so that a signed request cannot be reused
for another purpose.
Rule 3: a signature is valid for a quarter of an hour around its time; in a presigned URL for the
time that it states, a week at most.
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


class StatedCredential(NamedTuple):
    """Credential and signed headers: the same for all requests of a client during one day."""

    key_id: str
    date: str
    region: str
    service: str
    names: str
    """Names of the signed headers in lower case, separated by semicolons."""

    @property
    def scope(self) -> str:
        """The credential scope of the signing key."""
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


class ParsedSignature(NamedTuple):
    """The parsed signature of a request."""

    stated: StatedCredential
    signature: str
    time: str
    """Signing time, as 20260131T120000Z."""
    seconds: int = 0
    """Validity of a presigned URL in seconds; 0 for a signature in a header."""


class SigningKey:
    """The signing key of one day, service and region.

    The HMAC is prepared with the key, which makes signing three times as fast.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        block = key.ljust(64, b"\0")
        self._inner = sha256(bytes(byte ^ 0x36 for byte in block))
        self._outer = sha256(bytes(byte ^ 0x5C for byte in block))

    def sign(self, text: bytes) -> str:
        """Return the signature of a text in hexadecimal."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return outer.hexdigest()


def incomplete(message: str) -> Fault:
    """The signature is incomplete or malformed."""
    return Fault("IncompleteSignature", message, status=403)


def _mismatch(message: str) -> Fault:
    return Fault("SignatureDoesNotMatch", message, status=403)


def read_signed(headers: dict[str, str], query: str) -> ParsedSignature | None:
    """Parse the signature of a request; return None if it has none.

    Raises:
        Fault: the signature is malformed.
    """
    given = headers.get("authorization")
    if given is not None:
        if not given.startswith(ALGORITHM):
            return None
        return _in_header(headers, given)
    return _in_query(headers, query) if "X-Amz-Signature=" in query else None


def _in_header(headers: dict[str, str], given: str) -> ParsedSignature:
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
    return ParsedSignature(stated, signature, time)


@lru_cache(maxsize=limits.AWS_STATED_MAX)
def _stated(given: str) -> StatedCredential | None:
    found = _STATED.fullmatch(given)
    return None if found is None else StatedCredential(*found.groups())


@lru_cache(maxsize=limits.AWS_STATED_MAX)
def _listed(names: str) -> list[str]:
    return names.split(";")


def _see_headers(stated: StatedCredential, headers: dict[str, str]) -> None:
    names = _listed(stated.names)
    if "host" not in names:
        raise _mismatch("'Host' must be a 'SignedHeader' in the AWS Authorization.")
    for name in headers:
        if name.startswith(_OWN_PREFIX) and name not in names:
            raise _mismatch(f"{name!r} must be a 'SignedHeader' in the AWS Authorization.")


def _in_query(headers: dict[str, str], query: str) -> ParsedSignature:
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
    stated = StatedCredential(key_id, date, region, service, given["X-Amz-SignedHeaders"].lower())
    _see_headers(stated, headers)
    return ParsedSignature(stated, signature, time, int(seconds))


def see_time(signed: ParsedSignature, now: float) -> None:
    """Verify the time of a signature.

    Raises:
        Fault: it has expired, is in the future, or is of another day than its key.
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
    """Derive the signing key of a credential scope from the secret."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return SigningKey(key)


def signature_of(
    signed: ParsedSignature,
    key: SigningKey,
    method: str,
    path: str,
    query: str,
    headers: dict[str, str],
    body: bytes | bytearray | memoryview,
) -> str:
    """Compute the signature that the request should have.

    Raises:
        Fault: a header that is named as signed is missing.
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


def see_signature(expected: str, signed: ParsedSignature) -> None:
    """Verify that the signature is the expected one.

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
    """Return a path in its canonical form; paths that are not normalized were refused before."""
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
    """Encode a part of a query in its canonical form.

    A plus counts as a space, as when the form is parsed, so that the signed request is the executed
    one.
    """
    plain = unquote(text.replace("+", " "), encoding="latin-1")
    return quote(plain, safe=_UNRESERVED, encoding="latin-1")
