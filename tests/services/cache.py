"""Where fetched and built things stay from one run of the tests to the next."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/millrace`, by default `~/.cache/millrace`."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "millrace"


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of that name, which `make` fills if it is not there.

    It is there whole or not at all, and is made once where several ask at a time.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            begun = folder.with_name(f"{folder.name}.begun")
            shutil.rmtree(begun, ignore_errors=True)
            begun.mkdir()
            make(begun)
            begun.rename(folder)
    return folder
