"""The fragile queue and the one of its dead letters: what was sent is in one of them, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pyroaring import BitMap64

from tests.crash.book import Fate
from tests.crash.events import LookLetters, Lose
from tests.crash.findings import Findings


@dataclass(slots=True)
class Letter:
    """One message of the fragile queue."""

    sending: Fate = Fate.OPEN
    settling: Fate = Fate.NO
    discarding: Fate = Fate.NO
    is_dead: bool = False
    """It was seen among the dead letters."""


class Letters:
    """All messages of the fragile queue that anything may still be heard of."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._known: dict[int, Letter] = {}
        self._over = BitMap64()
        """Tags that must not be seen again."""
        self._settled = 0
        """Of those that are over."""

    @property
    def dead(self) -> int:
        """How many were seen among the dead letters."""
        return sum(letter.is_dead for letter in self._known.values())

    def _fault(self, kind: str, text: str) -> None:
        self._findings.add(kind, f"fragile: {text}")

    # --- What is tried and answered --------------------------------------------------------------

    def give(self, tags: Iterable[int]) -> None:
        """These are being sent."""
        self._known.update((tag, Letter()) for tag in tags)

    def given(self, tags: Iterable[int], fate: Fate) -> None:
        """They are there, or never will be."""
        for tag in tags:
            self._known[tag].sending = fate
            if fate is Fate.NO:
                self._end(tag)

    def got(self, tags: Iterable[int]) -> None:
        """A worker was handed these."""
        for tag in tags:
            letter = self._see(tag, "handed out")
            if letter is None:
                continue
            if letter.settling is Fate.YES:
                self._fault("revived", f"{tag} was settled, and handed out again")
            if letter.discarding is Fate.YES or letter.is_dead:
                self._fault("revived", f"{tag} is a dead letter, and was handed out again")

    def losing(self, attempt: Lose) -> None:
        """A worker ends its work on these, in one way or another."""
        for tag in attempt.tags:
            letter = self._known.get(tag)
            if letter is not None and attempt.how == "settle" and letter.settling is Fate.NO:
                letter.settling = Fate.OPEN
            if letter is not None and attempt.how == "discard" and letter.discarding is Fate.NO:
                letter.discarding = Fate.OPEN

    def lost(self, attempt: Lose, refused: Iterable[int]) -> None:
        """It has ended its work on these, but for those that were refused."""
        for tag in attempt.tags:
            letter = self._known.get(tag)
            if letter is None:
                continue
            fate = Fate.NO if tag in set(refused) else Fate.YES
            if attempt.how == "settle" and letter.settling is not Fate.YES:
                letter.settling = fate
            if attempt.how == "discard" and letter.discarding is not Fate.YES:
                letter.discarding = fate
            if letter.settling is Fate.YES and letter.discarding is Fate.YES:
                self._fault("misjudged", f"{tag} was settled, and discarded")

    def _see(self, tag: int, where: str) -> Letter | None:
        letter = self._known.get(tag)
        if letter is None:
            kind = "revived" if tag in self._over else "phantom"
            self._fault(kind, f"{tag} was {where}")
            return None
        letter.sending = Fate.YES
        return letter

    # --- Looking at both queues ------------------------------------------------------------------

    def look(self, look: LookLetters) -> None:
        """Compare with both queues, as they are while nothing happens but that letters move."""
        for where, tags in (("in its queue", look.rows), ("a dead letter", look.letters)):
            for tag, count in Counter(tags).items():
                if count > 1:
                    self._fault("doubled", f"{tag} is {where} {count} times")
                self._see(tag, f"seen as {where}")
        rows, letters = set(look.rows), set(look.letters)
        for tag in rows & letters:
            self._fault("doubled", f"{tag} is in its queue and a dead letter")
        for tag, letter in list(self._known.items()):
            if letter.sending is Fate.OPEN:
                self._end(tag)
            elif tag in rows:
                self._is_there(tag, letter)
            elif tag in letters:
                self._is_dead(tag, letter)
            else:
                self._is_nowhere(tag, letter)
        self._count(look)

    def _is_there(self, tag: int, letter: Letter) -> None:
        if letter.settling is Fate.YES:
            self._fault("revived", f"{tag} was settled, and is there again")
        if letter.is_dead:
            self._fault("revived", f"{tag} was among the dead letters, and is back")
        # A dead letter that has not been moved yet is still there.
        letter.settling = Fate.NO

    def _is_dead(self, tag: int, letter: Letter) -> None:
        if letter.settling is Fate.YES:
            self._fault("revived", f"{tag} was settled, and is a dead letter")
        letter.settling = Fate.NO
        letter.is_dead = True

    def _is_nowhere(self, tag: int, letter: Letter) -> None:
        is_explained = letter.settling is not Fate.NO
        if letter.is_dead or letter.discarding is Fate.YES or not is_explained:
            self._fault("lost", f"{tag} is in neither queue")
        self._settled += 1
        self._end(tag)

    def _end(self, tag: int) -> None:
        del self._known[tag]
        self._over.add(tag)

    def _count(self, look: LookLetters) -> None:
        counters = look.counters
        ends = counters["settled"] + counters["dead_lettered"]
        if counters["published"] != counters["live"] + ends:
            self._fault("miscounted", f"{counters} do not add up")
        if counters["settled"] != self._settled:
            self._fault("miscounted", f"{counters['settled']} settled, {self._settled} are known")
        if not counters["dead_lettered"] == look.arrived == len(look.letters):
            self._fault(
                "miscounted",
                f"{counters['dead_lettered']} went, {look.arrived} arrived, and "
                f"{len(look.letters)} are there",
            )
