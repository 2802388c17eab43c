"""A log that one worker works again and again: it goes on exactly where it was, or was sent to."""

from __future__ import annotations

from collections.abc import Sequence

from tests.crash.events import AnyAttempt, GoBack, Pull, Wind
from tests.crash.findings import Findings


class Reel:
    """Where its only worker must stand; what is leased here is never given back."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._rows = 0
        """Rows that are there for certain."""
        self._maybe = 0
        """Rows of publishes that were not answered."""
        self._nexts: set[int] | None = {1}
        """The seqs of which one comes next; None: it is not known."""

    def _fault(self, kind: str, text: str) -> None:
        self._findings.add(kind, f"reel: {text}")

    def wind(self, rows: int) -> None:
        """Rows are being published."""
        self._maybe += rows

    def wound(self, first: int, rows: int) -> None:
        """They were published, after all that came about before."""
        before = first - 1
        if not self._rows <= before <= self._rows + self._maybe - rows:
            kind = "lost" if before < self._rows else "phantom"
            self._fault(kind, f"{before} rows were there, not {self._rows}")
        self._rows, self._maybe = before + rows, 0

    def went_back(self, first: int) -> None:
        """The worker was sent to this seq."""
        self._nexts = {first}

    def pulled(self, seqs: Sequence[int], count: int) -> None:
        """The worker was handed these, up to so many."""
        if seqs:
            if list(seqs) != list(range(seqs[0], seqs[0] + len(seqs))):
                self._fault("skipped", f"{seqs} do not follow each other")
            if self._nexts is not None and seqs[0] not in self._nexts:
                kind = "skipped" if seqs[0] > min(self._nexts) else "revived"
                self._fault(kind, f"{seqs[0]} was handed out, not one of {self._nexts}")
            self._nexts = {seqs[-1] + 1}
        if len(seqs) < count and self._nexts is not None and max(self._nexts) <= self._rows:
            self._fault("lost", f"{max(self._nexts)} to {self._rows} were not handed out")

    def refused(self, attempt: AnyAttempt) -> None:
        """What was tried was not done, and never will be."""
        if isinstance(attempt, Wind):
            self._maybe -= attempt.rows
        elif isinstance(attempt, Pull):
            # Closed before it could be read: it is leased then, and runs out by itself.
            self._nexts = None

    def leave(self, attempt: AnyAttempt) -> None:
        """Nobody knows whether this was done."""
        if isinstance(attempt, GoBack) and self._nexts is not None:
            self._nexts.add(attempt.start)
        elif isinstance(attempt, Pull):
            self._nexts = None
