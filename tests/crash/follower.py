"""What one retaining cursor may show, and where it may stand.

- It shows every row once: each snapshot begins where the one before ended, or where the cursor was
  last committed.
- A snapshot that was not committed is shown again as it was, whatever has happened since.
- On a queue without keys it shows every seq there is, settled or not; on a keyed one the newest
  revision within the snapshot of every key that has one there, and no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from tests.crash.book import Book
from tests.crash.events import Showed


@dataclass(slots=True)
class Shown:
    """A snapshot as it was shown."""

    after: int
    boundary: int
    rows: dict[int, int] = field(default_factory=dict)


class Follower:
    """The cursor of one queue."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.committed = 0
        self._maybe: set[int] = set()
        """Places that it may have been moved to."""
        self._read = 0
        self._again: Shown | None = None
        """The last snapshot that was shown, until it is committed whole."""
        self._is_fresh = True
        """Whether the process has just begun: it must go on with what was not committed."""
        self._least = 0
        self._is_asked = False
        self._was_asked = False
        """Whether a snapshot may be pinned that an earlier process asked for and never showed."""
        self._shown: list[Shown] = []
        """Snapshots of a keyed queue, to be judged when every message's fate is known."""

    def begin(self, place: int) -> None:
        """The queue was opened, and the cursor found at this place."""
        if place != self.committed and place not in self._maybe:
            self._book.fault(
                "skipped",
                f"the cursor is at {place}, was committed at {self.committed}, "
                f"and may have been at {sorted(self._maybe)}",
            )
        self.committed = self._read = place
        self._maybe.clear()
        self._is_fresh = True
        self._was_asked = self._was_asked or self._is_asked
        self._is_asked = False
        self._judge()

    def asking(self) -> None:
        """The next snapshot is being asked for; what is known by now must be in it."""
        self._is_asked = True
        self._least = self._book.last

    def show(self, answer: Showed) -> None:
        """A snapshot was shown."""
        if not answer.boundary:
            self._is_asked = False
            if self._read < self._least:
                text = f"nothing after {self._read}, but {self._least} is there"
                self._book.fault("skipped", text)
            return
        shown = Shown(answer.after, answer.boundary, dict(answer.rows))
        if shown.after != self._read:
            self._book.fault("skipped", f"shown after {shown.after}, but {self._read} was read")
        self._compare(shown)
        seqs = [seq for seq, _ in answer.rows]
        is_rising = all(one < other for one, other in pairwise(seqs))
        if not is_rising or (seqs and not shown.after < seqs[0] <= seqs[-1] <= shown.boundary):
            self._book.fault("doubled", f"{shown.after}–{shown.boundary} shows {_few(seqs)}")
        for seq, tag in answer.rows:
            self._book.observe(tag, seq, "shown")
        if self._book.keyed:
            self._shown.append(shown)
        elif seqs != list(range(shown.after + 1, shown.boundary + 1)):
            missing = sorted(set(range(shown.after + 1, shown.boundary + 1)) - set(seqs))
            self._book.fault("skipped", f"{shown.after}–{shown.boundary} lacks {_few(missing)}")
        self._read, self._again = shown.boundary, shown
        self._is_fresh = self._is_asked = self._was_asked = False

    def _compare(self, shown: Shown) -> None:
        """With the snapshot that has to be shown again, if there is one."""
        again = self._again
        if not self._is_fresh or again is None or again.boundary <= self._read:
            is_old = self._is_fresh and self._was_asked
            if shown.boundary < self._least and not is_old:
                text = f"shown up to {shown.boundary}, {self._least} is there"
                self._book.fault("skipped", text)
            return
        expected = {seq: tag for seq, tag in again.rows.items() if seq > shown.after}
        if shown.boundary != again.boundary or shown.rows != expected:
            self._book.fault(
                "skipped",
                f"{shown.after}–{shown.boundary} was shown with {len(shown.rows)} rows, before "
                f"that {again.after}–{again.boundary} with {len(expected)} of these",
            )

    def committing(self, seq: int) -> None:
        """The cursor is being moved."""
        self._maybe.add(seq)

    def done(self, seq: int) -> None:
        """The cursor was moved."""
        self._maybe.discard(seq)
        self.committed = max(self.committed, seq)
        if self._again is not None and seq >= self._again.boundary:
            self._again = None

    def not_done(self, seq: int) -> None:
        """The cursor was not moved."""
        self._maybe.discard(seq)

    def _judge(self) -> None:
        """Look at what a keyed queue has shown, now that every message's fate is known."""
        for shown in self._shown:
            newest: dict[int, int] = {}
            for seq in range(shown.after + 1, shown.boundary + 1):
                message = self._book.placed.get(seq)
                if message is not None and message.key is not None:
                    newest[message.key] = seq
            expected = set(newest.values())
            known = {seq for seq in shown.rows if seq in self._book.placed}
            if missing := sorted(expected - known):
                self._book.fault("skipped", f"{shown.after}–{shown.boundary} lacks {_few(missing)}")
            if old := sorted(known - expected):
                self._book.fault(
                    "outdated",
                    f"{shown.after}–{shown.boundary} shows {_few(old)}, replaced by then",
                )
        self._shown.clear()


def _few(seqs: list[int]) -> str:
    shown = ", ".join(map(str, seqs[:5]))
    return f"{shown} and {len(seqs) - 5} more" if len(seqs) > 5 else shown or "nothing"
