"""The topic and its two queues: what was published is in both of them, once and in order.

One queue gets everything, the other what passes a filter; nobody takes anything out of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.crash.book import Fate
from tests.crash.events import LookTopic
from tests.crash.findings import Findings


class Told:
    """All messages that were ever published to the topic."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._fates: dict[int, Fate] = {}
        self._seen: list[int] = []

    @property
    def count(self) -> int:
        """How many were seen."""
        return len(self._seen)

    def _fault(self, kind: str, text: str) -> None:
        self._findings.add(kind, f"topic: {text}")

    def tell(self, tags: Iterable[int]) -> None:
        """These are being published."""
        self._fates.update(dict.fromkeys(tags, Fate.OPEN))

    def told(self, tags: Iterable[int], fate: Fate) -> None:
        """They are in the topic, or never will be."""
        self._fates.update(dict.fromkeys(tags, fate))

    def look(self, look: LookTopic) -> None:
        """Compare with both queues, once everything was forwarded."""
        rows = look.everything
        for tag, count in Counter(rows).items():
            if count > 1:
                self._fault("doubled", f"{tag} was forwarded {count} times")
            if self._fates.get(tag, Fate.NO) is Fate.NO:
                self._fault("phantom", f"{tag} was forwarded, and is not in the topic")
        if rows[: len(self._seen)] != self._seen:
            self._fault("lost", "what was there before is not there any more")
        if rows != sorted(rows):
            self._fault("skipped", "the queue is not in the order of the topic")
        there = set(rows)
        for tag, fate in self._fates.items():
            if fate is Fate.YES and tag not in there:
                self._fault("lost", f"{tag} was never forwarded")
            elif fate is Fate.OPEN:
                self._fates[tag] = Fate.YES if tag in there else Fate.NO
        wanted = [tag for tag in rows if is_wanted(tag)]
        if look.some != wanted:
            missed = sorted({*wanted} - {*look.some})
            kind = "lost" if missed else "doubled"
            self._fault(kind, f"the filter let {look.some[-20:]} pass; {missed[-20:]} are missed")
        self._seen = rows


def is_wanted(tag: int) -> bool:
    """Whether the filter lets it pass."""
    return tag % 3 == 0
