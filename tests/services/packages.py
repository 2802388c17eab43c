"""Programs that come with the system, installed if that may be."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.services.missing import Missing

INSTALL = Path(__file__).resolve().parents[2] / "tools" / "install.sh"


def find_program(name: str, folders: str | None = None) -> Path | None:
    """A program on the path, else in the last folder that fits the pattern below `/`."""
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    if folders is not None:
        for folder in sorted(Path("/").glob(folders), reverse=True):
            if (folder / name).is_file():
                return folder / name
    return None


def have_program(name: str, package: str, folders: str | None = None) -> Path:
    """The program, whose package is installed if it is not there.

    Raises:
        Missing: it is not there, and may not or cannot be installed.
    """
    found = find_program(name, folders)
    if found is None:
        ended = subprocess.run([INSTALL, package], stderr=subprocess.PIPE, text=True, check=False)
        found = find_program(name, folders)
        if found is None:
            raise Missing(f"{name} is missing, which package {package} has: {ended.stderr.strip()}")
    return found
