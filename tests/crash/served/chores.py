"""The book of the chores: each is published once, worked on, and then never seen again."""

from __future__ import annotations

from dataclasses import dataclass

from tests.crash.findings import Findings
from tests.crash.served.events import AnyChore, Assign, Assigned, LookChores, Worked


@dataclass(slots=True)
class Chore:
    """One chore."""

    seq: int = 0
    is_confirmed: bool = False
    worked: int = 0
    deadline_ms: int = 0


class Chores:
    """All chores that were ever assigned."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._known: dict[int, Chore] = {}

    @property
    def worked(self) -> int:
        """How many were worked on."""
        return sum(chore.worked > 0 for chore in self._known.values())

    @property
    def repeats(self) -> int:
        """How often one was worked on once more."""
        return sum(max(chore.worked - 1, 0) for chore in self._known.values())

    def hear(self, event: AnyChore) -> None:
        """Take in the next event."""
        match event:
            case Assign():
                self._known[event.tag] = Chore()
            case Assigned():
                chore = self._place(event.tag, event.seq, "confirmed")
                if chore is not None:
                    chore.is_confirmed = True
            case Worked():
                self._worked(event)
            case LookChores():
                self._look(event)

    def _place(self, tag: int, seq: int, where: str) -> Chore | None:
        chore = self._known.get(tag)
        if chore is None:
            self._findings.add("phantom", f"chore {tag} {where} at {seq} was never assigned")
            return None
        if seq and chore.seq not in (0, seq):
            self._findings.add("doubled", f"chore {tag} is at {chore.seq}, and {where} at {seq}")
        chore.seq = chore.seq or seq
        return chore

    def _worked(self, event: Worked) -> None:
        chore = self._place(event.tag, event.seq, "worked on")
        if chore is None:
            return
        if event.at_ms < chore.deadline_ms:
            left_ms = chore.deadline_ms - event.at_ms
            self._findings.add(
                "shared", f"chore {event.tag} was worked on again {left_ms} ms before its time"
            )
        chore.worked += 1
        chore.deadline_ms = event.deadline_ms

    def _look(self, look: LookChores) -> None:
        seen: set[int] = set()
        for seq, tag in look.rows:
            chore = self._place(tag, seq, "seen")
            if chore is None:
                continue
            seen.add(tag)
            if chore.worked and look.at_ms < chore.deadline_ms:
                # The worker has stopped, and so has settled all that it still held.
                self._findings.add("revived", f"chore {tag} was worked on, and is there")
        for tag, chore in self._known.items():
            if chore.is_confirmed and not chore.worked and tag not in seen:
                self._findings.add("lost", f"chore {tag} at {chore.seq}")
        known = sum(chore.seq > 0 or chore.is_confirmed for chore in self._known.values())
        if look.published != known:
            self._findings.add("miscounted", f"{look.published} chores, {known} are known")
