"""The key that messages are signed with, and its certificate; and what is sealed with it.

Rule 1: a folder has one key, in a file that nobody but its owner may read. It is made when it is
first needed; of several processes that do so at once, all use the one that was first.
Rule 2: the certificate is signed by its own key: whoever verifies a message trusts the server that
it was fetched from. Its path tells which one it is, so that it may be kept for good.
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
from millrace.server.secret import read_secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SIGNING_KEY_FILE = "sns.key"
"""In the folder: the key and its certificate, as PEM."""

CERTIFICATE_PATH = "/_aws/sns/"
"""Where certificates are served from."""

_NONCE_BYTES = 12
"""As AES in Galois/Counter Mode has it."""

_END = "-----END PRIVATE KEY-----"


class Signer:
    """Signs what subscribers are handed."""

    def __init__(self, key_pem: str, certificate_pem: str) -> None:
        self.certificate = certificate_pem
        digest = sha256(certificate_pem.encode()).hexdigest()[:32]
        self.name = f"SimpleNotificationService-{digest}.pem"
        self.path = f"{CERTIFICATE_PATH}{self.name}"
        """The address of the certificate."""
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
            # Version 1 is what SNS signs by unless a topic says otherwise.
            return key.sign(data, PKCS1v15(), SHA256() if version == "2" else SHA1())

        return sign

    def sign(self, text: str, version: str) -> str:
        """The signature of a text, in Base64, by this version."""
        return b64encode(self._sign(text.encode(), version)).decode()

    def proof(self, text: str) -> str:
        """What nobody without the key can make of a text: to know it again, nothing is kept."""
        key = sha256(f"confirmations\n{self._key_pem}".encode()).digest()
        return hmac.new(key, text.encode(), sha256).hexdigest()

    @cached_property
    def _seal(self) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(sha256(f"tokens\n{self._key_pem}".encode()).digest())

    def seal(self, data: bytes) -> bytes:
        """The data so that nobody without the key can read it, or make it."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._seal.encrypt(nonce, data, None)

    def unseal(self, sealed: bytes) -> bytes | None:
        """The data that was sealed with this key; None: it was not."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._seal.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            return None


def open_signer(folder: Path) -> Signer:
    """The signer of a folder; its key is made if there is none.

    Raises:
        Invalid: the key cannot be read, or what it is made with is not installed.
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
    """Write the file, unless another was first."""
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
    """A new key and its certificate, as PEM.

    Raises:
        Invalid: what they are made with is not installed.
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
    # The clock of whoever verifies may be behind.
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
