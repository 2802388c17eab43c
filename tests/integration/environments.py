"""Environments of Python in which clients run that ours has not, each from a lock of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from hashlib import sha256
from pathlib import Path

from tests.services.cache import cached
from tests.services.missing import Missing

LOCKS = Path(__file__).with_name("locks")


def have_python(name: str) -> Path:
    """The Python of an environment that has what `locks/<name>.lock` lists, and nothing else.

    Raises:
        Missing: what it lists could not be fetched.
    """
    lock = LOCKS / f"{name}.lock"
    digest = sha256(lock.read_bytes()).hexdigest()[:12]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
        checked = ["install", "--quiet", "--require-hashes", "--only-binary", ":all:"]
        ended = subprocess.run(
            [*pip, *checked, "-r", str(lock)], capture_output=True, text=True, check=False
        )
        if ended.returncode != 0:
            raise Missing(f"pip could not fetch {lock.name}:\n{ended.stderr[-2000:]}")

    return cached(f"python{version}-{name}-{digest}", make) / "bin" / "python"


def have_pythons() -> None:
    """Have every environment that there is a lock of.

    Raises:
        Missing: what one of them lists could not be fetched.
    """
    for lock in sorted(LOCKS.glob("*.lock")):
        have_python(lock.stem)
