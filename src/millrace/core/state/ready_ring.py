"""Groups with deliverable messages, in round-robin order: a bounded window onto the stored ring.

Turns rise, so that a group always joins at the end. The cells of the ring are its pages: the groups
of consecutive turns, beginning with the turn in the cell's key.

Rule 1: turns before `front` are used up, whatever their page says; later ones are if their entry in
the page is None.
Rule 2: every page whose first turn lies below `known_to` is here; all others are only in the store.
Rule 3: a group joins the last page, which is always in memory, or a new one if that is full.
Rule 4: a window that has grown too large evicts its last pages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from millrace import limits

Page = tuple[int | None, ...]
"""The groups of successive turns; None: the turn is used up."""

Changed = dict[int, Page | None]
"""First turn → the changed page; None: it was deleted."""


class ReadyRing:
    """The first turns and their groups."""

    __slots__ = ("_count", "_last", "_pages", "front", "known_to")

    def __init__(self, known_to: int | None = None, front: int = 0) -> None:
        self._pages: dict[int, Page] = {}
        """First turn → page, in order."""
        self._count = 0
        """Number of unused turns in the window."""
        self._last: tuple[int, Page] | None = None
        """The page for new groups; it may be one that is not in `_pages`."""
        self.front = front
        self.known_to = known_to
        """The first page that may be missing here; None: all existing pages are here."""

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield turns and groups, in order."""
        for first, page in self._pages.items():
            for turn, group in enumerate(page, first):
                if group is not None and turn >= self.front:
                    yield turn, group

    def firsts(self, count: int) -> list[tuple[int, int]]:
        """Return the first turns and their groups, up to `count`."""
        turns: list[tuple[int, int]] = []
        for first, page in self._pages.items():
            start = max(first, self.front)
            left = page[start - first :]
            turns += [(turn, group) for turn, group in enumerate(left, start) if group is not None]
            if len(turns) >= count:
                break
        return turns[:count]

    def may_have_one(self) -> bool:
        return self._count > 0 or self.known_to is not None

    def wanted_from(self, count: int) -> int | None:
        """Return the turn from which the store must be read until `count` turns are known; None:
        no read."""
        return None if self._count >= min(count, limits.RING_TURNS) else self.known_to

    def put(self, turn: int, groups: Sequence[int]) -> Changed:
        """Give these groups new turns, from `turn` on, which are the last."""
        changed: Changed = {}
        limit, at = limits.RING_PAGE_TURNS, 0
        while at < len(groups):
            first, page = self._last or (turn + at, ())
            if len(page) >= limit or first + len(page) != turn + at:
                first, page = turn + at, ()
            part = groups[at : at + limit - len(page)]
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
        """Mark these turns, in rising order, as used up."""
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
        """Mark turns of a page as used up: leading ones by `front`, others by emptying their
        places."""
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
        """Advance to the first unused turn; pages before it are deleted."""
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

    def learn(self, pages: Mapping[int, Page], known_to: int | None) -> None:
        """Add the pages from `known_to` on, in order, up to the next unknown one."""
        for first, page in pages.items():
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
        """Return the number of unused turns of a page."""
        return sum(group is not None for group in page[max(self.front - first, 0) :])
