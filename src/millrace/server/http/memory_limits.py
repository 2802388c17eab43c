"""Memory of request bodies and unsent responses: limits for all users, and the share of each.

Rule: a user holds no more than a fraction of the memory that the others leave, so that the next one
has room even if several try to take all of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial

from millrace import limits
from millrace.server.http.parser import Request
from millrace.server.http.proxy_headers import network_of


class MemoryShares:
    """Counts held bytes by owner."""

    def __init__(self, bytes_max: int) -> None:
        self.size = 0
        self._bytes_max = bytes_max
        self._of: dict[str, int] = {}

    def add(self, owner: str, size: int) -> None:
        """Add `size` bytes to an owner's count; negative: subtract."""
        self.size += size
        held = self._of.get(owner, 0) + size
        if held:
            self._of[owner] = held
        else:
            self._of.pop(owner, None)

    def held(self, owner: str) -> int:
        """Return the number of bytes held for an owner."""
        return self._of.get(owner, 0)

    def left(self, owner: str) -> int:
        """Return the number of bytes that the other owners leave."""
        return max(0, self._bytes_max - self.size + self.held(owner))

    def share(self, owner: str) -> int:
        """Return the number of bytes that an owner may hold now."""
        return self.left(owner) // limits.HTTP_SHARE


# --- Memory of responses that clients have not received yet, over all connections ----------------
#
# Rule 1: a user whose clients receive too slowly gets no further answers until they catch up;
# answers that have begun continue.
# Rule 2: slow users do not delay others: a user without unsent bytes always has room.
# Rule 3: no request waits for ever: held bytes are received, or their connection is closed by
# timeout.


class UnsentResponses(MemoryShares):
    """Counts the response bytes that wait to be sent, by user."""

    def __init__(self) -> None:
        super().__init__(limits.HTTP_UNSENT_BYTES_MAX)
        self._rooms: dict[str, asyncio.Event] = {}
        """Events of users with waiting requests."""

    def add(self, owner: str, size: int) -> None:
        super().add(owner, size)
        if size < 0 and self._rooms:
            for name in [name for name in self._rooms if self.has_room(name)]:
                self._rooms.pop(name).set()

    def has_room(self, owner: str) -> bool:
        """Return whether another answer to a user may begin."""
        held = self.held(owner)
        return not held or held < self.share(owner)

    async def room(self, owner: str) -> None:
        """Wait until a user has room."""
        while not self.has_room(owner):
            await self._rooms.setdefault(owner, asyncio.Event()).wait()


class SendProgress:
    """Counts the unsent bytes of one connection."""

    def __init__(self, unsent: UnsentResponses) -> None:
        self._unsent = unsent
        self.owner = ""
        """User of the latest request."""
        self.rest = 0
        """Bytes of the response that were not written to the transport yet."""
        self._counted = ("", 0)

    def end(self) -> None:
        """Stop counting: the connection is closed."""
        self.rest = 0
        self.count(0)

    def count(self, size: int) -> bool:
        """Count `size` unsent bytes in the transport; return whether any bytes are unsent."""
        size += self.rest
        before, self._counted = self._counted, (self.owner, size)
        if size != before[1] or (size and before[0] != self.owner):
            self._unsent.add(self.owner, size)
            self._unsent.add(before[0], -before[1])
        return size > 0


# --- Limits on the memory of request bodies, and on the time that a slow body may take -----------
#
# Rule 1: a user holds no more than their share.
# Rule 2: a body counts for the user named in its head only after authentication; before, it counts
# for the client's address, in a separate share.
# Rule 3: a body that stalls is not waited for, however much of it came before.


class BodyLimits(MemoryShares):
    """Counts the bytes of bodies that are being read, queued or handled, over all connections."""

    def __init__(self, body_bytes_max: int) -> None:
        super().__init__(limits.HTTP_BODIES_BYTES_MAX)
        self._body_bytes_max = body_bytes_max
        self._for_all = limits.HTTP_BODIES_BYTES_MAX // (limits.HTTP_SHARE + 1)
        """Up to this total, no user can exceed their share, however the bytes are divided."""

        self._for_all_addresses = limits.HTTP_UNPROVED_BYTES_MAX // (limits.HTTP_SHARE + 1)
        """The same bound for addresses."""
        self.unproved = MemoryShares(limits.HTTP_UNPROVED_BYTES_MAX)
        """Bodies of requests whose senders are not authenticated yet, by `address_holder`."""

    def shares_of(self, holder: str) -> MemoryShares:
        """Return the shares that count the bodies of a user or of an address (`address_holder`)."""
        return self.unproved if holder.startswith(_ADDRESS) else self

    def excess(self, owner: str, size: int = 0) -> tuple[str, int] | None:
        """Return the reason and the bound if `size` bytes more exceed the owner's share, else
        None."""
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
            # A body of the greatest size has room if no other user sends any.
            share = min(self.left(owner), max(share, self._body_bytes_max))
        if held + size <= share:
            return None
        return f"requests of one user hold {share} bytes at most now; send this one later", share


class _Held:
    """The counted body of one request."""

    __slots__ = ("holder", "shares", "size")

    def __init__(self, shares: MemoryShares, holder: str, size: int) -> None:
        self.shares = shares
        self.holder = holder
        self.size = size


_EMPTY = _Held(MemoryShares(0), "", 0)
"""Stands for all empty bodies."""

_ADDRESS = "@"
"""Prefix of addresses: no user's name begins with it."""


def address_holder(peer: str) -> str:
    """Return the owner for bodies from an address whose senders are not authenticated yet.

    All addresses of one network share (`network_of`).
    """
    return _ADDRESS + network_of(peer)


class ConnectionBodies:
    """Counts the bodies of one connection."""

    def __init__(self, bodies: BodyLimits) -> None:
        self._bodies = bodies
        self._whole: deque[_Held] = deque()
        """Bodies of requests that have not ended, in order."""
        self._part = ("", 0)
        """Owner and size of the partial body that is being read."""

    def take(self, found: list[Request], part: tuple[str, int]) -> str | None:
        """Count complete requests, and the owner and size of the partial body behind them.

        Returns the reason if that exceeds a share, else None.
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
        """Count a body for its owner instead of the address, after authentication."""
        if held.size:
            held.shares.add(held.holder, -held.size)
            self._bodies.add(owner, held.size)
        held.shares, held.holder = self._bodies, owner

    def end(self) -> None:
        """Stop counting the oldest complete request; without effect after `let_go`."""
        if self._whole:
            held = self._whole.popleft()
            if held.size:
                held.shares.add(held.holder, -held.size)
                held.size = 0

    def let_go(self) -> None:
        """Stop counting everything: the connection is closed."""
        self.take([], ("", 0))
        while self._whole:
            self.end()


class BodyRate:
    """Detects a body that arrives too slowly.

    The remaining time shrinks by time and grows with received bytes, but never above its initial
    value: a fast beginning does not allow a stall afterwards.
    """

    def __init__(self, now: float) -> None:
        self._left: float = limits.HTTP_HEAD_SECONDS_MAX
        self._seen_at = now
        self._seen_bytes = 0

    def forgive(self, seconds: float) -> None:
        """Do not count this time against the sender."""
        self._seen_at += seconds

    def is_too_slow(self, now: float, size: int, *, is_awaited: bool) -> bool:
        """Return True if `size` bytes by now are too few; `is_awaited`: the sender is able to send
        more."""
        more = (size - self._seen_bytes) / limits.HTTP_BODY_BYTES_PER_SECOND_MIN
        waited = now - self._seen_at if is_awaited else 0.0
        self._left = min(limits.HTTP_HEAD_SECONDS_MAX, self._left - waited + more)
        self._seen_at, self._seen_bytes = now, size
        return self._left < 0
