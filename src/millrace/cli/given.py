"""What a command line says of the folder or the server that is meant."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Given(NamedTuple):
    """The options that name it, and how its user is known."""

    data: str | None = None
    context: str | None = None
    token_file: Path | None = None
    certificates: Path | None = None
