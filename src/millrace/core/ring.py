"""The groups that are ready, in the order of their turns: a bounded window onto the ring.

Turns are given in rising order, so that a group that joins always joins at the end.

Rule 1: every turn below `known_to` is here; the others are in the store alone.
Rule 2: a window that has grown too large forgets its last turns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping

from millrace import limits


class Ring:
    """The first turns and their groups."""

    __slots__ = ("_turns", "known_to")

    def __init__(self, known_to: int | None = None) -> None:
        self._turns: OrderedDict[int, int] = OrderedDict()
        self.known_to = known_to
        """The first turn that may be unknown; None: all there are, are here."""

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield turns and groups, in order."""
        return iter(self._turns.items())

    def may_have_one(self) -> bool:
        return bool(self._turns) or self.known_to is not None

    def wanted_from(self, count: int) -> int | None:
        """From which turn on the store must be asked before so many are known, if at all."""
        is_enough = len(self._turns) >= min(count, limits.RING_TURNS)
        return None if is_enough else self.known_to

    def put(self, turn: int, group: int) -> None:
        """A group has a new turn, which is the last."""
        if self.known_to is None:
            self._turns[turn] = group
            self._shrink()

    def drop(self, turn: int) -> None:
        """A turn is over."""
        self._turns.pop(turn, None)

    def learn(self, found: Mapping[int, int], known_to: int | None) -> None:
        """Take in the turns from `known_to` on, in order, up to the one that comes next."""
        self._turns.update(found)
        self.known_to = known_to
        self._shrink()

    def _shrink(self) -> None:
        if len(self._turns) <= 2 * limits.RING_TURNS:
            return
        while len(self._turns) > limits.RING_TURNS:
            self.known_to, _ = self._turns.popitem()
