"""Certificates that tests make for themselves."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


class Authority:
    """Signs certificates; its own is in `path`."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._number = 0
        now = datetime.now(UTC)
        own = (
            self._builder(name, self._key.public_key(), now - DAY, now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(own.public_bytes(Encoding.PEM))

    def _builder(
        self, subject: str, key: ec.EllipticCurvePublicKey, begins: datetime, expires: datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name(self._name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(expires)
        )

    def sign(
        self,
        *names: str,
        begins: datetime | None = None,
        expires: datetime | None = None,
        password: bytes | None = None,
    ) -> Pair:
        """A certificate for names and addresses, valid from yesterday to tomorrow if not said."""
        self._number += 1
        now = datetime.now(UTC)
        key = ec.generate_private_key(ec.SECP256R1())
        others: list[x509.GeneralName] = [_general(name) for name in names or ("localhost",)]
        signed = (
            self._builder("server", key.public_key(), begins or now - DAY, expires or now + DAY)
            .add_extension(x509.SubjectAlternativeName(others), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = f"{self._name}-{self._number}"
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        pair.certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        hidden = BestAvailableEncryption(password) if password else NoEncryption()
        pair.key.touch(mode=0o600)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden))
        return pair


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
