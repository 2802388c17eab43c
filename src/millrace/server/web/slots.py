"""Slots for concurrent streams, sessions and jobs, with a fair share per user.

Rule 1: a user gets at most its quota, and at most a fixed fraction of the slots that others leave:
however many users take their maximum, a slot remains for the next one.
Rule 2: a slot is returned once, by the code that took it.
"""

from __future__ import annotations

from millrace import limits
from millrace.errors import Exhausted, Full
from millrace.server.auth.access import Principal
from millrace.server.quota.quotas import Quotas


class Slots:
    """A limited number of slots, counted per user."""

    def __init__(self, field: str, most: int, what: str) -> None:
        """`field` is the field of errors, `what` the noun in their texts."""
        self._field = field
        self._most = most
        self._what = what
        self.taken = 0
        self._users: dict[str, int] = {}

    def take(self, user: str, own_max: int = 0) -> None:
        """Take a slot for a user, who may have `own_max` of them; 0: no limit per user.

        Raises:
            Exhausted: the user has as many as its quota allows.
            Full: all slots are taken, or the user has its share of them.
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
        """Return a slot of a user."""
        self.taken -= 1
        left = self._users[user] - 1
        if left:
            self._users[user] = left
        else:
            del self._users[user]


class Streams:
    """The slots of event streams of a process."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._slots = Slots("streams", limits.HTTP_STREAMS_MAX, "streams of events")

    @property
    def taken(self) -> int:
        """Number of open streams."""
        return self._slots.taken

    def take(self, principal: Principal) -> None:
        """Take a slot for a stream; see `Slots.take`."""
        self._slots.take(principal.name, self._quotas.share(principal, "streams"))

    def give_back(self, principal: Principal) -> None:
        """Return the slot of a stream."""
        self._slots.give_back(principal.name)
