"""What is said to people while they wait: lines on stderr, unless whoever calls takes them."""

from __future__ import annotations

import sys
from collections.abc import Callable

Say = Callable[[str], None]
"""Is told in one line what goes on."""


def aloud(text: str) -> None:
    """Say it on stderr."""
    sys.stderr.write(f"millrace: {text}\n")
