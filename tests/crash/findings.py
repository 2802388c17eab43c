"""What a ledger finds fault with, counted by kind."""

from __future__ import annotations

from collections import Counter

KINDS = {
    "lost": "acknowledged, and not there",
    "doubled": "the same message twice, or two messages in one place",
    "phantom": "there, though nobody sent it, or though it was refused or had never come about",
    "revived": "settled, and handed out or shown again",
    "outdated": "an older revision of a key beside, or instead of, a newer one",
    "torn": "a part of a batch, a stage or a transaction",
    "skipped": "a cursor, or a log's worker, that left out rows, or moved by itself",
    "shared": "leased by two at once",
    "early": "handed out before its delay was over",
    "late": "handed out after its time to live was over",
    "misjudged": "an answer that contradicts an earlier one",
    "miscounted": "counters that do not agree with what happened",
}
"""Every kind of fault, and what it means."""

_TOLD_MAX = 40
"""Findings that are told in words; more of them say nothing new."""


class Findings:
    """Counts of every kind of fault, and the first ones in words."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.told: list[str] = []

    def add(self, kind: str, text: str) -> None:
        """Take note of a fault."""
        assert kind in KINDS, kind
        self.counts[kind] += 1
        if len(self.told) < _TOLD_MAX:
            self.told.append(f"{kind}: {text}")

    def line(self) -> str:
        """Every kind with its count, zeros too: the reader sees what was looked for."""
        return ", ".join(f"{self.counts[kind]:,} {kind}" for kind in KINDS)

    def __bool__(self) -> bool:
        return self.counts.total() > 0
