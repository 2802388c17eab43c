"""Paths that programs name."""

from __future__ import annotations

import os
from pathlib import Path

from millrace.core import check, exact
from millrace.errors import Invalid


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
