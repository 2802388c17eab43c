"""TLS for clients: contexts, certificates, and error messages that say what to do.

Rule: a certificate is always verified, including its name. This cannot be disabled; for a server
with a self-made certificate, name the authority that signed it.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from millrace.errors import Invalid
from millrace.rpc.secret_file import check_private

_EXPIRED = 10
_NOT_YET = 9
_NO_ISSUER = (18, 19, 20, 21)
_OTHER_NAME = (62, 64)
"""Verification results of OpenSSL (X509_V_ERR_…)."""


def client_context(
    ca: Path | None = None, certificate: Path | None = None, key: Path | None = None
) -> ssl.SSLContext:
    """Return a TLS context for a client, for TLS 1.2 or later.

    `ca` is a PEM file of the trusted authorities, by default those of the system. `certificate` and
    `key` authenticate the client.

    Raises:
        Invalid: a file cannot be read, or has the wrong content.
    """
    try:
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise Invalid(
            f"the authorities in {ca} cannot be used: {why(error)}", field="ca"
        ) from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate is not None or key is not None:
        if certificate is None or key is None:
            missing = "certificate" if certificate is None else "key"
            raise Invalid("a certificate and its key go together", field=missing)
        load_pair(context, certificate, key, "certificate", "key")
    return context


def load_pair(
    context: ssl.SSLContext, certificate: Path, key: Path, certificate_field: str, key_field: str
) -> None:
    """Load a certificate and its key into a context.

    Raises:
        Invalid: a file cannot be read or has the wrong content, the key is encrypted, does not
            match the certificate, or is accessible to others; the error says which.
    """
    for path, field in ((certificate, certificate_field), (key, key_field)):
        try:
            with path.open("rb") as file:
                if field == key_field:
                    check_private(file.fileno(), path, field)
        except OSError as error:
            raise Invalid(f"{path} cannot be read: {error.strerror}", field=field) from error

    def password() -> str:
        raise Invalid(
            f"the key in {key} is encrypted, and nobody is there to be asked; "
            f"`openssl pkey -in {key} -out plain.pem` writes it without, keep that at mode 0600",
            field=key_field,
        )

    try:
        context.load_cert_chain(certificate, key, password=password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise Invalid(
                f"the key in {key} is not that of the certificate in {certificate}",
                field=key_field,
            ) from error
        field = key_field if _has_certificate(certificate) else certificate_field
        path = key if field == key_field else certificate
        expected = "a private key" if field == key_field else "a certificate"
        raise Invalid(
            f"{path} does not hold {expected} as PEM: {why(error)}", field=field
        ) from error


def _has_certificate(path: Path) -> bool:
    try:
        return bool(first_certificate(path))
    except ValueError:
        return False


def first_certificate(path: Path) -> bytes:
    """Return the first certificate of a PEM file, as DER.

    Raises:
        ValueError: the file contains no certificate.
    """
    text = path.read_bytes().decode("ascii", "replace")
    _, begin, rest = text.partition(ssl.PEM_HEADER)
    body, end, _ = rest.partition(ssl.PEM_FOOTER)
    if not begin or not end:
        raise ValueError("no certificate")
    return ssl.PEM_cert_to_DER_cert(begin + body + end)


def explain(error: OSError, where: str) -> str:
    """Describe an error between a client and the server at `where`, and its remedy."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {where} is not accepted: {_verdict(error)}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
            return f"{where} does not speak TLS; is its address one of http://?"
        if "CERTIFICATE_REQUIRED" in reason or reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
            return f"{where} asks for a certificate of the client; name certificate and key"
        if "UNKNOWN_CA" in reason:
            return f"{where} does not trust who signed the client's certificate"
        if "VERSION" in reason or "PROTOCOL" in reason:
            return f"{where} speaks no version of TLS from 1.2 on"
        return f"TLS with {where} failed: {why(error)}"
    return f"{where} cannot be reached: {error.strerror or error}"


def _verdict(error: ssl.SSLCertVerificationError) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "it has expired; have the server take up a newer one"
    if code == _NOT_YET:
        return "it is not valid yet; compare the clocks"
    if code in _OTHER_NAME:
        return f"it is of another name ({error.verify_message}); use the name that it is made for"
    if code in _NO_ISSUER:
        return "nobody who is trusted has signed it; name the file of its authority as certificates"
    return error.verify_message


def why(error: OSError) -> str:
    """Describe an error in a few words, without the location in OpenSSL's source."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or str(error)
