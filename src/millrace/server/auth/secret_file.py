"""Secret files: mode 0600, and refused if others may read them."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from base64 import b32encode, urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

from millrace import limits
from millrace.errors import Invalid
from millrace.rpc.secret_file import check_private

ACCESS_KEY_FILE = "access.key"
"""File in the folder with the master secret of access keys."""

ADMIN_TOKEN_FILE = "admin.token"
"""File in the folder with the token of the first administrator."""

TOKEN_FILE = "token_file"
"""Setting of clients that names the file with their token; no server generates that one."""

_SECRET_BYTES = 32
_KEY_ID_PREFIX = "MRAK"


def read_secret(path: Path, field: str) -> str:
    """Read the text of a file that only its owner may read.

    Raises:
        Invalid: it cannot be read, is empty or too large, or others may read it; the part behind
            the last semicolon says what to do.
        FileNotFoundError: the file does not exist.
    """
    try:
        with path.open("rb") as file:
            check_private(file.fileno(), path, field)
            data = file.read(limits.SECRET_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Invalid(
            f"{path} cannot be read: {error.strerror}; name a file that you may read", field=field
        ) from error
    if len(data) > limits.SECRET_FILE_BYTES_MAX:
        raise Invalid(
            f"{path} has more than {limits.SECRET_FILE_BYTES_MAX} bytes, and so is no secret; name "
            "the file that holds it",
            field=field,
            limit=limits.SECRET_FILE_BYTES_MAX,
        )
    try:
        text = data.decode("ascii").strip()
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} holds no text; name the file that holds it", field=field) from error
    if not text:
        mend = "write the token to it" if field == TOKEN_FILE else "remove it, and it is made anew"
        raise Invalid(f"{path} is empty; {mend}", field=field)
    return text


def write_secret(path: Path, text: str) -> None:
    """Write a secret to a file of mode 0600, durably, and replace an existing file."""
    beside = path.with_name(f"{path.name}.new")
    with suppress(FileNotFoundError):
        beside.unlink()
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as file:
        file.write(f"{text}\n".encode("ascii"))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def key_secret(path: Path) -> bytes:
    """Return the master secret of access keys; a missing file is created.

    Raises:
        Invalid: see `read_secret`, or the content is not a secret that this has written.
    """
    try:
        text = read_secret(path, "key_file")
    except FileNotFoundError:
        made = secrets.token_bytes(_SECRET_BYTES)
        write_secret(path, made.hex())
        return made
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != _SECRET_BYTES:
        raise Invalid(f"{path} is not {2 * _SECRET_BYTES} hexadecimal digits", field="key_file")
    return found


def new_key_id(chance: bytes) -> str:
    """Return the id of an access key from 10 random bytes: 20 letters and digits, as in AWS."""
    return _KEY_ID_PREFIX + b32encode(chance).decode("ascii")


def secret_of(key_id: str, secret: bytes) -> str:
    """Return the secret of an access key: 40 characters derived from its id and the master secret.

    Secrets of other keys reveal neither this one nor the master secret. An unknown id takes the
    same time.
    """
    made = hmac.new(
        secret, b"millrace access key\0" + key_id.encode("utf-8", "replace"), hashlib.sha256
    )
    return urlsafe_b64encode(made.digest()[:30]).decode("ascii")
