"""How many streams of events there are."""

from __future__ import annotations

from millrace import limits
from millrace.errors import Full


class Slots:
    """How many streams there are."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self) -> None:
        """One more.

        Raises:
            Full: there are too many.
        """
        most = limits.HTTP_STREAMS_MAX
        if self.taken >= most:
            text = f"there are {most} streams of events; end one, or try again later"
            raise Full(text, field="streams", limit=most, after_ms=1000)
        self.taken += 1
