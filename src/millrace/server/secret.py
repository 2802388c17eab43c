"""Files that hold a secret: mode 0600, and refused where others may read them."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from base64 import b32encode, urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

from millrace import limits
from millrace.client.secret_file import check_private
from millrace.errors import Invalid

ACCESS_KEY_FILE = "access.key"
"""In the folder: what the secrets of access keys are made of."""

ADMIN_TOKEN_FILE = "admin.token"
"""In the folder: the token of the first administrator."""

TOKEN_FILE = "token_file"
"""The field of those who ask: their own token, which no server makes anew."""

_SECRET_BYTES = 32
_KEY_ID_PREFIX = "MRAK"


def read_secret(path: Path, field: str) -> str:
    """The text in a file that nobody but its owner may read.

    Raises:
        Invalid: it cannot be read, holds nothing or too much, or others may read it; behind the
            last semicolon it is said what to do.
        FileNotFoundError: it is not there.
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
    """Write a secret to a new file of mode 0600, durably; one that is there is replaced."""
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
    """What the secrets of access keys are made of; it is made where it is missing.

    Raises:
        Invalid: see `read_secret`, or it is not what this has written.
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
    """The id of an access key, from 10 random bytes: 20 letters and digits, as AWS has them."""
    return _KEY_ID_PREFIX + b32encode(chance).decode("ascii")


def secret_of(key_id: str, secret: bytes) -> str:
    """The secret of an access key: 40 characters that follow from its id and the file.

    Whoever knows neither the file nor this one learns nothing from the secrets of others. An id
    that nobody has costs as much.
    """
    made = hmac.new(
        secret, b"millrace access key\0" + key_id.encode("utf-8", "replace"), hashlib.sha256
    )
    return urlsafe_b64encode(made.digest()[:30]).decode("ascii")
