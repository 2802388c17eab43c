"""What bodies hold, whose they are, and whether they come fast enough.

Rule 1: one who asks holds no more than their share.
Rule 2: a body that stands still is not waited for, however much of it came before.
"""

from __future__ import annotations

from collections import deque

from millrace import limits
from millrace.server.http.parser import Request
from millrace.server.http.shares import Shares


class Bodies(Shares):
    """The bytes of bodies that are being read, wait, or are handled, over all connections."""

    def __init__(self, body_bytes_max: int) -> None:
        super().__init__(limits.HTTP_BODIES_BYTES_MAX)
        self._body_bytes_max = body_bytes_max
        self._for_all = limits.HTTP_BODIES_BYTES_MAX // (limits.HTTP_SHARE + 1)
        """If no more are held in all, nobody has more than their share, whoever has how many."""

    def excess(self, owner: str, size: int = 0) -> tuple[str, int] | None:
        """Why so many bytes more are not held for someone, and the bound; None: there is room."""
        if self.size + size <= self._for_all:
            return None
        held, share = self.held(owner), self.share(owner)
        if self.size == held:
            # A body of the greatest size has room, if nobody else sends any.
            share = min(self.left(owner), max(share, self._body_bytes_max))
        if held + size <= share:
            return None
        return f"requests of one user hold {share} bytes at most now; send this one later", share


class Kept:
    """What one connection has of them."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._whole: deque[tuple[str, int]] = deque()
        """Those of requests that have not ended, in their order."""
        self._part = ("", 0)
        """Of the one that is being read."""

    def take(self, found: list[Request], part: tuple[str, int]) -> str | None:
        """These are whole now, and of another so much has come for someone.

        Returns why that is too much; None: it is not.
        """
        add, before = self._bodies.add, self._part
        for request in found:
            self._whole.append((request.owner, len(request.body)))
            if request.body:
                add(request.owner, len(request.body))
        self._part = part
        if before[1]:
            add(before[0], -before[1])
        if not part[1]:
            return None
        add(*part)
        excess = self._bodies.excess(part[0])
        return None if excess is None else excess[0]

    def end(self) -> None:
        """The first that was whole has ended; after `let_go` nothing more is counted."""
        if self._whole:
            owner, size = self._whole.popleft()
            if size:
                self._bodies.add(owner, -size)

    def let_go(self) -> None:
        """The connection has gone."""
        self.take([], ("", 0))
        while self._whole:
            self.end()


class Pace:
    """How long one body is still waited for.

    Time takes from it and bytes add to it, but never beyond what there was at the beginning: what
    came fast buys no silence afterwards.
    """

    def __init__(self, now: float) -> None:
        self._left: float = limits.HTTP_HEAD_SECONDS_MAX
        self._seen_at = now
        self._seen_bytes = 0

    def is_too_slow(self, now: float, size: int, *, is_awaited: bool) -> bool:
        """Whether `size` bytes by now are too few; `is_awaited`: the sender could send more."""
        more = (size - self._seen_bytes) / limits.HTTP_BODY_BYTES_PER_SECOND_MIN
        waited = now - self._seen_at if is_awaited else 0.0
        self._left = min(limits.HTTP_HEAD_SECONDS_MAX, self._left - waited + more)
        self._seen_at, self._seen_bytes = now, size
        return self._left < 0
