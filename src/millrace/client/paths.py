"""Paths that programs name."""

from __future__ import annotations

import os
from pathlib import Path

from millrace.core import check, exact
from millrace.errors import Invalid


def is_short_address(text: str) -> bool:
    """Whether it is an address as host:port rather than a folder: one of this name is not there."""
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in text and port.isdecimal() and not os.path.exists(text)


def folder_of(path: object, field: str) -> Path:
    """The path, if the system could have one of this name."""
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    text = exact.text(given)
    if not text or "\0" in text:
        raise Invalid(f"{field} is {check.shown(given)}, not the path of a folder", field=field)
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        what = f"{field} is no text that the system takes: {error.reason}"
        raise Invalid(what, field=field) from error
    return Path(text)
