"""Queues that are made, filled and deleted again, and what must be left of them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.crash.book import Fate
from tests.crash.findings import Findings


@dataclass(slots=True)
class Other:
    """One queue that does not last."""

    making: Fate = Fate.OPEN
    dropping: Fate = Fate.NO
    rows: int = 0
    """Rows that are there for certain."""
    maybe: int = 0
    """Rows of a publish that was not answered: all of them, or none."""


class OtherQueues:
    """All of them that were not deleted for certain."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._known: dict[str, Other] = {}

    def make(self, name: str) -> None:
        """It is being made."""
        self._known[name] = Other()

    def fill(self, name: str, rows: int) -> None:
        """Rows are being published to it."""
        self._known[name].maybe = rows

    def drop(self, name: str) -> None:
        """It is being deleted."""
        self._known[name].dropping = Fate.OPEN

    def made(self, name: str) -> None:
        """It was made."""
        self._known[name].making = Fate.YES

    def filled(self, name: str) -> None:
        """The rows were published."""
        other = self._known[name]
        other.rows += other.maybe
        other.maybe = 0

    def dropped(self, name: str) -> None:
        """It was deleted."""
        self._known[name].dropping = Fate.YES

    def look(self, published: dict[str, int]) -> None:
        """Compare with those that are there."""
        for name in published.keys() - self._known.keys():
            self._findings.add("phantom", f"queue {name} is there, though nobody made it")
        for name, other in self._known.items():
            count = published.get(name)
            if count is None:
                if other.making is Fate.YES and other.dropping is Fate.NO:
                    self._findings.add("lost", f"queue {name} with {other.rows} rows")
            elif other.dropping is Fate.YES:
                self._findings.add("revived", f"queue {name} was deleted, and is there")
            elif count not in (other.rows, other.rows + other.maybe):
                kind = "lost" if count < other.rows else "torn"
                self._findings.add(kind, f"queue {name} has {count} rows, not {other.rows}")
        self._known = {
            name: Other(making=Fate.YES, rows=count) for name, count in published.items()
        }
