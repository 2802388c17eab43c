"""Progress notices for people: lines on stderr, or passed to a callback."""

from __future__ import annotations

import sys
from collections.abc import Callable

Say = Callable[[str], None]
"""A callback that takes one line of text."""


def print_notice(text: str) -> None:
    """Print a notice on stderr."""
    sys.stderr.write(f"millrace: {text}\n")
