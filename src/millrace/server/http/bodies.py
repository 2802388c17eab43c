"""What bodies hold, whose they are, and whether they come fast enough.

Rule 1: one who asks holds no more than their share.
Rule 2: a body counts for who is named in its head only once that is proved; before, it counts for
the address that it comes from, in a share of its own.
Rule 3: a body that stands still is not waited for, however much of it came before.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from millrace import limits
from millrace.server.http.parser import Request
from millrace.server.http.shares import Shares
from millrace.server.network import network_of


class Bodies(Shares):
    """The bytes of bodies that are being read, wait, or are handled, over all connections."""

    def __init__(self, body_bytes_max: int) -> None:
        super().__init__(limits.HTTP_BODIES_BYTES_MAX)
        self._body_bytes_max = body_bytes_max
        self._for_all = limits.HTTP_BODIES_BYTES_MAX // (limits.HTTP_SHARE + 1)
        """If no more are held in all, nobody has more than their share, whoever has how many."""

        self._for_all_addresses = limits.HTTP_UNPROVED_BYTES_MAX // (limits.HTTP_SHARE + 1)
        """The same of addresses."""
        self.unproved = Shares(limits.HTTP_UNPROVED_BYTES_MAX)
        """Those of requests whose senders are not proved, by `address_holder`."""

    def shares_of(self, holder: str) -> Shares:
        """Return where the bodies of a user, or of an address (`address_holder`), are counted."""
        return self.unproved if holder.startswith(_ADDRESS) else self

    def excess(self, owner: str, size: int = 0) -> tuple[str, int] | None:
        """Why so many bytes more are not held for someone, and the bound; None: there is room."""
        if owner.startswith(_ADDRESS):
            if self.unproved.size + size <= self._for_all_addresses:
                return None
            share = self.unproved.share(owner)
            if self.unproved.held(owner) + size <= share:
                return None
            return (
                f"signed requests of one address hold {share} bytes at most before they are "
                "proved; send this one later"
            ), share
        if self.size + size <= self._for_all:
            return None
        held, share = self.held(owner), self.share(owner)
        if self.size == held:
            # A body of the greatest size has room, if nobody else sends any.
            share = min(self.left(owner), max(share, self._body_bytes_max))
        if held + size <= share:
            return None
        return f"requests of one user hold {share} bytes at most now; send this one later", share


class _Held:
    """The body of one request."""

    __slots__ = ("holder", "shares", "size")

    def __init__(self, shares: Shares, holder: str, size: int) -> None:
        self.shares = shares
        self.holder = holder
        self.size = size


_EMPTY = _Held(Shares(0), "", 0)
"""The body of every request that has none."""

_ADDRESS = "@"
"""No user's name begins with it."""


def address_holder(peer: str) -> str:
    """Return for whom bodies are held that come from an address, as long as nothing is proved.

    All addresses of one network share (`network_of`).
    """
    return _ADDRESS + network_of(peer)


class Kept:
    """What one connection has of them."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._whole: deque[_Held] = deque()
        """Those of requests that have not ended, in their order."""
        self._part = ("", 0)
        """Of the one that is being read."""

    def take(self, found: list[Request], part: tuple[str, int]) -> str | None:
        """These are whole now, and of another so much has come for someone.

        Returns why that is too much; None: it is not.
        """
        bodies, before = self._bodies, self._part
        for request in found:
            if not request.body and not request.holder:
                self._whole.append(_EMPTY)
                continue
            size = len(request.body)
            if request.holder:
                held = _Held(bodies.shares_of(request.holder), request.holder, size)
                if request.refusal is None:
                    request.on_proved = partial(self._move, held, request.owner)
            else:
                held = _Held(bodies, request.owner, size)
            self._whole.append(held)
            if size:
                held.shares.add(held.holder, size)
        self._part = part
        if before[1]:
            bodies.shares_of(before[0]).add(before[0], -before[1])
        if not part[1]:
            return None
        bodies.shares_of(part[0]).add(*part)
        excess = bodies.excess(part[0])
        return None if excess is None else excess[0]

    def _move(self, held: _Held, owner: str) -> None:
        """Count a body for its owner, who is proved now."""
        if held.size:
            held.shares.add(held.holder, -held.size)
            self._bodies.add(owner, held.size)
        held.shares, held.holder = self._bodies, owner

    def end(self) -> None:
        """The first that was whole has ended; after `let_go` nothing more is counted."""
        if self._whole:
            held = self._whole.popleft()
            if held.size:
                held.shares.add(held.holder, -held.size)
                held.size = 0

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

    def forgive(self, seconds: float) -> None:
        """Do not count so much time."""
        self._seen_at += seconds

    def is_too_slow(self, now: float, size: int, *, is_awaited: bool) -> bool:
        """Whether `size` bytes by now are too few; `is_awaited`: the sender could send more."""
        more = (size - self._seen_bytes) / limits.HTTP_BODY_BYTES_PER_SECOND_MIN
        waited = now - self._seen_at if is_awaited else 0.0
        self._left = min(limits.HTTP_HEAD_SECONDS_MAX, self._left - waited + more)
        self._seen_at, self._seen_bytes = now, size
        return self._left < 0
