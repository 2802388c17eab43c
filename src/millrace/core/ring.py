"""The groups that are ready, in the order of their turns: a bounded window onto the ring.

Turns are given in rising order, so that a group that joins always joins at the end. The cells of
the ring are its pages: the groups of the turns that follow the one in the cell's key.

Rule 1: turns before `front` are over, whatever their page says. Of the others those are over whose
place in the page is empty (None).
Rule 2: every page whose first turn lies below `known_to` is here; the store alone has the others.
Rule 3: who joins is written into the last page, until that is full. It is known, or begun anew.
Rule 4: a window that has grown too large forgets its last pages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from millrace import limits

Page = tuple[int | None, ...]
"""The groups of successive turns; None: the turn is over."""

Changed = dict[int, Page | None]
"""First turn → the page as it is now; None: it is no longer there."""


class Ring:
    """The first turns and their groups."""

    __slots__ = ("_count", "_last", "_pages", "front", "known_to")

    def __init__(self, known_to: int | None = None, front: int = 0) -> None:
        self._pages: dict[int, Page] = {}
        """By their first turns, in order."""
        self._count = 0
        """Turns that are here and not over."""
        self._last: tuple[int, Page] | None = None
        """The page that takes who joins; it may be one that is not in `_pages`."""
        self.front = front
        self.known_to = known_to
        """The first page that may be unknown; None: all there are, are here."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield turns and groups, in order."""
        for first, page in self._pages.items():
            for turn, group in enumerate(page, first):
                if group is not None and turn >= self.front:
                    yield turn, group

    def firsts(self, count: int) -> list[tuple[int, int]]:
        """The first turns and their groups, up to so many."""
        found: list[tuple[int, int]] = []
        for first, page in self._pages.items():
            start = max(first, self.front)
            left = page[start - first :]
            found += [(turn, one) for turn, one in enumerate(left, start) if one is not None]
            if len(found) >= count:
                break
        return found[:count]

    def may_have_one(self) -> bool:
        return self._count > 0 or self.known_to is not None

    def wanted_from(self, count: int) -> int | None:
        """From which turn on the store must be asked before so many are known, if at all."""
        return None if self._count >= min(count, limits.RING_TURNS) else self.known_to

    def put(self, turn: int, groups: Sequence[int]) -> Changed:
        """These groups have new turns, from `turn` on, which are the last."""
        changed: Changed = {}
        most, at = limits.RING_PAGE_TURNS, 0
        while at < len(groups):
            first, page = self._last or (turn + at, ())
            if len(page) >= most or first + len(page) != turn + at:
                first, page = turn + at, ()
            part = groups[at : at + most - len(page)]
            page = (*page, *part)
            self._last = (first, page)
            changed[first] = page
            if self.known_to is None or first < self.known_to:
                self._pages[first] = page
                self._count += len(part)
            at += len(part)
        self._shrink()
        return changed

    def drop(self, turns: Sequence[int]) -> Changed:
        """These turns, in rising order, are over."""
        changed: Changed = {}
        at = 0
        for first in list(self._pages) if turns else ():
            if at == len(turns):
                break
            page = self._pages[first]
            end = bisect_left(turns, first + len(page), at)
            if end > at:
                self._drop_of(first, page, turns[at:end], changed)
                at = end
        assert at == len(turns), "nobody is served whose turn is not known"
        self._pass(changed)
        return changed

    def _drop_of(self, first: int, page: Page, turns: Sequence[int], changed: Changed) -> None:
        """Of one page: those in front are passed, for others their places are emptied."""
        self._count -= len(turns)
        start = max(first, self.front)
        is_first = first == next(iter(self._pages))
        if is_first and turns[0] == start and turns[-1] - start == len(turns) - 1:
            self.front = turns[-1] + 1
            if self.front == first + len(page):
                self._forget(first, changed)
            return
        left = list(page)
        for turn in turns:
            left[turn - first] = None
        self._set(first, tuple(left), changed)

    def _pass(self, changed: Changed) -> None:
        """Go on to the first turn that is not over; pages before it go."""
        while self._pages:
            first, page = next(iter(self._pages.items()))
            at = max(self.front - first, 0)
            while at < len(page) and page[at] is None:
                at += 1
            self.front = max(self.front, first + at)
            if at < len(page):
                return
            self._forget(first, changed)

    def _set(self, first: int, page: Page, changed: Changed) -> None:
        self._pages[first] = changed[first] = page
        if self._last is not None and self._last[0] == first:
            self._last = (first, page)

    def _forget(self, first: int, changed: Changed) -> None:
        del self._pages[first]
        changed[first] = None
        if self._last is not None and self._last[0] == first:
            self._last = None

    def learn(self, found: Mapping[int, Page], known_to: int | None) -> None:
        """Take in the pages from `known_to` on, in order, up to the one that comes next."""
        for first, page in found.items():
            self._pages[first] = page
            self._count += self._open(first, page)
        self.known_to = known_to
        self._shrink()

    def _shrink(self) -> None:
        if self._count <= 2 * limits.RING_TURNS:
            return
        while self._pages:
            first, page = next(reversed(self._pages.items()))
            left = self._count - self._open(first, page)
            if left < limits.RING_TURNS:
                return
            del self._pages[first]
            self._count, self.known_to = left, first

    def _open(self, first: int, page: Page) -> int:
        """How many turns of a page are not over."""
        return sum(group is not None for group in page[max(self.front - first, 0) :])
