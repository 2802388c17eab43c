"""The signing key of messages, its certificate, and the encryption of tokens.

Rule 1: a data directory has one key, in a file that only its owner can read. It is created on first
use; if several processes create one at once, all use the first.
Rule 2: the certificate is self-signed: receivers that verify a message trust the server that they
fetched it from. Its path contains its digest, so that it can be cached forever.
"""

from __future__ import annotations

import hmac
import os
import tempfile
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from millrace import limits
from millrace.errors import Invalid
from millrace.server.auth.secret_file import read_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SIGNING_KEY_FILE = "sns.key"
"""File in the data directory with the key and its certificate, as PEM."""

CERTIFICATE_PATH = "/_aws/sns/"
"""Path prefix of the certificate."""

_NONCE_BYTES = 12
"""Nonce size of AES-GCM."""

_END = "-----END PRIVATE KEY-----"


class Signer:
    """Signs messages, and encrypts tokens, with the key of a data directory."""

    def __init__(self, key_pem: str, certificate_pem: str) -> None:
        self.certificate = certificate_pem
        digest = sha256(certificate_pem.encode()).hexdigest()[:32]
        self.name = f"SimpleNotificationService-{digest}.pem"
        self.path = f"{CERTIFICATE_PATH}{self.name}"
        """URL path of the certificate."""
        self._key_pem = key_pem

    @cached_property
    def _sign(self) -> Callable[[bytes, str], bytes]:
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.hashes import SHA1, SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(self._key_pem.encode(), None)
        assert isinstance(key, RSAPrivateKey)

        def sign(data: bytes, version: str) -> bytes:
            # SNS uses version 1 unless the topic has another.
            return key.sign(data, PKCS1v15(), SHA256() if version == "2" else SHA1())

        return sign

    def sign(self, text: str, version: str) -> str:
        """Return the signature of a text in Base64."""
        return b64encode(self._sign(text.encode(), version)).decode()

    def proof(self, text: str) -> str:
        """Return a keyed MAC of a text: tokens are verified by computing it again, without storing
        them.
        """
        key = sha256(f"confirmations\n{self._key_pem}".encode()).digest()
        return hmac.new(key, text.encode(), sha256).hexdigest()

    @cached_property
    def _seal(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(sha256(f"tokens\n{self._key_pem}".encode()).digest())

    def seal(self, data: bytes) -> bytes:
        """Encrypt and authenticate data with the key."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._seal.encrypt(nonce, data, None)

    def unseal(self, sealed: bytes) -> bytes | None:
        """Decrypt data that was sealed with this key; return None if it was not."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._seal.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            return None


def open_signer(folder: Path) -> Signer:
    """Return the signer of a data directory; create its key if it has none.

    Raises:
        Invalid: the key cannot be read, or the package that creates it is not installed.
    """
    path = folder / SIGNING_KEY_FILE
    try:
        text = read_secret(path, "sns")
    except FileNotFoundError:
        _keep(path, make_pair())
        text = read_secret(path, "sns")
    key, end, certificate = text.partition(_END)
    if not end or "BEGIN CERTIFICATE" not in certificate:
        raise Invalid(
            f"{path} is no key with its certificate; remove it, and one is made anew", field="sns"
        )
    return Signer(key + end, certificate.strip() + "\n")


def _keep(path: Path, text: str) -> None:
    """Write the key file, unless another process was first."""
    descriptor, beside = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(beside, path)
    finally:
        os.unlink(beside)


def make_pair() -> str:
    """Create a key and its certificate, as PEM.

    Raises:
        Invalid: the package that creates them is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
        )
    except ImportError as error:
        raise Invalid(
            "messages of topics are signed by the package cryptography, which is not installed; "
            "run `pip install 'millrace[server]'`",
            field="sns",
        ) from error
    key = generate_private_key(65537, limits.SNS_KEY_BITS)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sns.millrace")])
    # Valid since yesterday: the clock of a verifier may be behind.
    now = datetime.now(UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=limits.SNS_KEY_DAYS))
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (private + certificate.public_bytes(Encoding.PEM)).decode()
