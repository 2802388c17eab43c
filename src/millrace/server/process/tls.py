"""TLS of a server: a context whose certificate can be replaced while it is in use.

Rule 1: TLS 1.2 or later; unusable files are refused before anything listens.
Rule 2: a new certificate is validated separately before it replaces the old one: a failed reload
changes nothing. Existing connections continue.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from millrace.errors import Invalid
from millrace.rpc.tls import first_certificate, load_pair, why


class Certificates:
    """The certificate of a server, and the TLS context that presents it."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        client_ca: Path | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """Load the files.

        With `client_ca`, clients must present a certificate signed by one of its authorities.

        Raises:
            Invalid: a file cannot be read or has wrong content, the certificate has expired, or the
                key belongs to another one.
        """
        self._now = now or (lambda: datetime.now(UTC))
        self._client_ca = client_ca
        self.context = self._make(certificate, key)
        self.expires = self._expires_of(certificate)
        """End of the certificate's validity; clients refuse to connect from then on."""

    def reload(self, certificate: Path, key: Path) -> None:
        """Present another certificate on new connections.

        Raises:
            Invalid: as at creation; the old certificate stays.
        """
        self._make(certificate, key)
        expires = self._expires_of(certificate)
        load_pair(self.context, certificate, key, "tls_certificate", "tls_key")
        self.expires = expires

    def _make(self, certificate: Path, key: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        load_pair(context, certificate, key, "tls_certificate", "tls_key")
        begins, expires = self._validity_of(certificate)
        now = self._now()
        if now >= expires:
            raise Invalid(
                f"the certificate in {certificate} has expired at {expires:%Y-%m-%d %H:%M} UTC",
                field="tls_certificate",
            )
        if now < begins:
            raise Invalid(
                f"the certificate in {certificate} is valid from {begins:%Y-%m-%d %H:%M} UTC on "
                "only; compare the clocks",
                field="tls_certificate",
            )
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except (OSError, ssl.SSLError) as error:
                raise Invalid(
                    f"the authorities in {self._client_ca} cannot be used: {why(error)}",
                    field="tls_client_ca",
                ) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _expires_of(self, certificate: Path) -> datetime:
        return self._validity_of(certificate)[1]

    def _validity_of(self, certificate: Path) -> tuple[datetime, datetime]:
        try:
            return validity_of(first_certificate(certificate))
        except (OSError, ValueError) as error:
            raise Invalid(
                f"{certificate} does not hold a certificate as PEM: {error}",
                field="tls_certificate",
            ) from error


# --- Validity of a certificate -------------------------------------------------------------------

_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0
_UTC_TIME, _TIME = 0x17, 0x18


def validity_of(der: bytes) -> tuple[datetime, datetime]:
    """Return begin and end of a certificate's validity.

    The standard library returns them for a peer's certificate only, so this parses the few bytes:
    Certificate { tbs { [version] serial signature issuer validity { from until } … } … }.

    Raises:
        ValueError: the data is not a certificate.
    """
    body = _inside(_inside(der, _SEQUENCE), _SEQUENCE)
    tag, _, rest = _part(body)
    if tag == _VERSION:
        tag, _, rest = _part(rest)
    if tag != _INTEGER:
        raise ValueError("no serial number")
    _, _, rest = _part(rest)
    _, _, rest = _part(rest)
    dates = _inside(rest, _SEQUENCE)
    first_tag, first, dates = _part(dates)
    last_tag, last, _ = _part(dates)
    return _moment(first_tag, first), _moment(last_tag, last)


def _part(data: bytes) -> tuple[int, bytes, bytes]:
    """Return tag and content of the first DER value, and the data behind it."""
    if len(data) < 2:
        raise ValueError("it ends too early")
    size, begin = data[1], 2
    if size & 0x80:
        count = size & 0x7F
        if not 1 <= count <= 4:
            raise ValueError("a length of no certificate")
        begin += count
        size = int.from_bytes(data[2:begin], "big")
    if len(data) < begin + size:
        raise ValueError("it ends too early")
    return data[0], data[begin : begin + size], data[begin + size :]


def _inside(data: bytes, tag: int) -> bytes:
    found, content, _ = _part(data)
    if found != tag:
        raise ValueError("no certificate")
    return content


def _moment(tag: int, content: bytes) -> datetime:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        # Years of two digits: from 50 on they are of the 20th century.
        text = ("19" if text >= "50" else "20") + text
    elif tag != _TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
