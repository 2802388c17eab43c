"""Places for what goes on at a time: streams, sessions, jobs; how many each user has of them.

Rule 1: a user has as many as their quota says, and no more than one part of what the others have
left: however many users take all that they may, there is a place for one more.
Rule 2: what was taken is given back by who took it, once.
"""

from __future__ import annotations

from millrace import limits
from millrace.errors import Exhausted, Full
from millrace.server.access import Principal
from millrace.server.quota import Quotas


class Slots:
    """How many there are, and for whom."""

    def __init__(self, field: str, most: int, what: str) -> None:
        """`field` is what errors name, `what` how they call it."""
        self._field = field
        self._most = most
        self._what = what
        self.taken = 0
        self._users: dict[str, int] = {}

    def take(self, user: str, own_max: int = 0) -> None:
        """One more for a user, who may have so many; 0: as many as there are.

        Raises:
            Exhausted: the user has as many as they may.
            Full: there are too many, or the user has their share of them.
        """
        field, what = self._field, self._what
        mine = self._users.get(user, 0)
        if own_max and mine >= own_max:
            text = f"{user} has {mine} {what}, and may have {own_max}; end one first"
            raise Exhausted(text, field=field, limit=own_max, after_ms=1000)
        if self.taken >= self._most:
            text = f"there are {self._most} {what}; end one, or try again later"
            raise Full(text, field=field, limit=self._most, after_ms=1000)
        share = -(-(self._most - self.taken + mine) // limits.HTTP_SHARE)
        if mine >= share:
            text = (
                f"{user} has {mine} {what}, half of what others leave of {self._most}; end one, or "
                "try again later"
            )
            raise Full(text, field=field, limit=share, after_ms=1000)
        self.taken += 1
        self._users[user] = mine + 1

    def give_back(self, user: str) -> None:
        """One of a user has ended."""
        self.taken -= 1
        left = self._users[user] - 1
        if left:
            self._users[user] = left
        else:
            del self._users[user]


class Streams:
    """The streams of events of a process."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._slots = Slots("streams", limits.HTTP_STREAMS_MAX, "streams of events")

    @property
    def taken(self) -> int:
        """How many there are."""
        return self._slots.taken

    def take(self, principal: Principal) -> None:
        """One more; see `Slots.take`."""
        self._slots.take(principal.name, self._quotas.share(principal, "streams"))

    def give_back(self, principal: Principal) -> None:
        """One has ended."""
        self._slots.give_back(principal.name)
