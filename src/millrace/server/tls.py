"""TLS as a server speaks it: a context whose certificate can be changed while it is in use.

Rule 1: TLS 1.2 or later; what cannot work is refused before anybody connects.
Rule 2: a certificate is looked at apart before it takes the place of the one in use: a reload that
fails changes nothing. Connections that are there go on as they are.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from millrace.client.tls import first_certificate, load_pair, why
from millrace.errors import Invalid


class Certificates:
    """The certificate of a server, and the context that presents it."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        *,
        client_ca: Path | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """Read the files.

        With `client_ca`, whoever connects must have a certificate that one of these has signed.

        Raises:
            Invalid: a file cannot be read, is not what it should be, has expired, or the key is of
                another certificate.
        """
        self._now = now or (lambda: datetime.now(UTC))
        self._client_ca = client_ca
        self.context = self._make(certificate, key)
        self.expires = self._expires_of(certificate)
        """When the certificate does; connections are refused by clients from then on."""

    def reload(self, certificate: Path, key: Path) -> None:
        """Present another certificate to those who connect from now on.

        Raises:
            Invalid: as when it was made; the old one stays.
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


# --- When a certificate is valid -----------------------------------------------------------------

_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0
_UTC_TIME, _TIME = 0x17, 0x18


def validity_of(der: bytes) -> tuple[datetime, datetime]:
    """From when and until when a certificate is valid.

    The standard library tells it of a peer only; so the few bytes that say it are read here:
    Certificate { tbs { [version] serial signature issuer validity { from until } … } … }.

    Raises:
        ValueError: it is no certificate.
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
    """Tag and content of the first value, and what follows it."""
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
        # Two digits of the year: from 50 on they are of the last century.
        text = ("19" if text >= "50" else "20") + text
    elif tag != _TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
