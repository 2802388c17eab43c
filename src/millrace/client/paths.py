"""Validation of paths that programs give."""

from __future__ import annotations

import os
from pathlib import Path

from millrace.core import plain_types, validate
from millrace.errors import Invalid


def is_short_address(text: str) -> bool:
    """Return True if a text is an address like host:port, and no file of that name exists."""
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in text and port.isdecimal() and not os.path.exists(text)


def validate_folder(path: object, field: str) -> Path:
    """Return the path of a folder, if it is one that the system could have.

    Raises:
        Invalid: it is not a path.
    """
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    text = plain_types.text(given)
    if not text or "\0" in text:
        raise Invalid(f"{field} is {validate.shown(given)}, not the path of a folder", field=field)
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        what = f"{field} is no text that the system takes: {error.reason}"
        raise Invalid(what, field=field) from error
    return Path(text)
