"""The book of one queue: every message that was tried, and what must have become of it.

It is told what a client could know, and nothing else. An attempt without an answer is UNKNOWN until
it is seen, or until a look at the whole queue, while nothing else happens, does not show it: from
then on it must never appear.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from pyroaring import BitMap64

from tests.crash.events import Look, Took
from tests.crash.findings import Findings


class Fate(Enum):
    """What is known of something that was tried."""

    OPEN = "not answered"
    YES = "done"
    NO = "not done"


@dataclass(slots=True, eq=False)
class Message:
    """One message."""

    tag: int
    key: int | None
    sending: Sending
    seq: int = 0
    """Its place, once it is known to be there."""
    settling: Fate = Fate.NO
    purging: Fate = Fate.NO
    settled_by: int = 0
    """The lease call under which it was settled."""
    superseded_at: int = 0
    """When a newer revision was first known to be there, by the ledger's clock."""
    version: int = 0
    """The newest lease call that is known."""
    taken_at: int = 0
    """When it was heard of, by the ledger's clock."""
    until_ms: int = 0
    """Nobody else may lease it before."""
    deliveries: int = 0
    receipt: str = ""

    @property
    def is_over(self) -> bool:
        """No worker and no new reader may see it any more."""
        return self.settling is Fate.YES or self.purging is Fate.YES or self.superseded_at > 0


@dataclass(slots=True, eq=False)
class Sending:
    """Messages that were published together: all of them are there, or none."""

    queue: str
    tags: list[int]
    keys: list[int]
    producer: str = ""
    number: int = 0
    stage: str = ""
    first: int = 0
    fate: Fate = Fate.OPEN
    deletes: list[int] = field(default_factory=list)


class Book:
    """All messages of one queue that anything may still be heard of."""

    def __init__(self, name: str, findings: Findings, *, keyed: bool) -> None:
        self.name = name
        self.keyed = keyed
        self.present: dict[int, Message] = {}
        """By tag."""
        self.placed: dict[int, Message] = {}
        """By seq."""
        self.newest: dict[int, Message] = {}
        """By key."""
        self.over = BitMap64()
        """Tags that must not be seen again."""
        self.settled = BitMap64()
        """Seqs of messages that were settled and are forgotten here."""
        self.clock = 0
        self.last = 0
        """The highest seq that is known to be there."""
        self._findings = findings
        self._sure = 0
        self._unsure = 0

    def fault(self, kind: str, text: str) -> None:
        """Take note of a fault in this queue."""
        self._findings.add(kind, f"{self.name}: {text}")

    # --- Publishing ------------------------------------------------------------------------------

    def attempt(self, sending: Sending) -> None:
        """These are being sent now, for the first time or after it is known that they are not
        there."""
        sending.fate = Fate.OPEN
        for place, tag in enumerate(sending.tags):
            key = sending.keys[place] if sending.keys else None
            self.over.discard(tag)
            self.present[tag] = Message(tag, key, sending)

    def apply(self, sending: Sending, first: int) -> None:
        """They are there, from `first` on."""
        if sending.fate is Fate.NO:
            self.fault("phantom", f"{_shown(sending)} came about after all, at {first}")
        if sending.first and sending.first != first:
            self.fault("doubled", f"{_shown(sending)} is at {sending.first} and at {first}")
        if sending.first:
            return
        sending.fate, sending.first = Fate.YES, first
        for seq, tag in enumerate(sending.tags, first):
            message = self.present.get(tag)
            if message is not None:
                self._place(message, seq)

    def _place(self, message: Message, seq: int) -> None:
        other = self.placed.setdefault(seq, message)
        if other is not message:
            self.fault("doubled", f"seq {seq} is both {other.tag} and {message.tag}")
        message.seq = seq
        self._sure += 1
        self.last = max(self.last, seq)
        if message.key is None:
            return
        newest = self.newest.get(message.key)
        if newest is None or newest.seq < seq:
            self.newest[message.key] = message
            older = newest
        else:
            older = message
        if older is not None and not older.superseded_at:
            older.superseded_at = self.clock

    def refuse(self, sending: Sending, code: str) -> None:
        """They are not there, and never will be."""
        if sending.fate is Fate.YES:
            # A repeat that found no room, or came too late, says nothing of the first time.
            if code not in ("full", "closed"):
                self.fault("misjudged", f"{_shown(sending)} was {code}, but is there")
            return
        sending.fate = Fate.NO
        for tag in sending.tags:
            self.present.pop(tag, None)
            self.over.add(tag)

    def observe(self, tag: int, seq: int, where: str) -> Message | None:
        """A message was seen at a place; None if it cannot be."""
        message = self.present.get(tag)
        if message is None:
            if tag in self.over:
                self.fault("revived", f"{tag} was over, and came back {where} at {seq}")
            else:
                self.fault("phantom", f"{tag} {where} at {seq} was never sent, or is damaged")
            return None
        if not message.seq:
            sending = message.sending
            self.apply(sending, seq - sending.tags.index(tag))
        if message.seq != seq:
            self.fault("doubled", f"{tag} is at {message.seq}, and {where} at {seq}")
        return message

    # --- Work ------------------------------------------------------------------------------------

    def took(self, answer: Took, at_ms: int, lease_ms: int, since: int) -> None:
        """A lease call, tried at `at_ms`, when the ledger's clock was `since`, gave these."""
        for seq, left_ms in answer.early:
            self.fault("early", f"{seq} was leased {left_ms} ms before its delay was over")
        for (seq, tag, deliveries), receipt in zip(answer.rows, answer.receipts, strict=True):
            message = self.observe(tag, seq, "leased")
            if message is None or answer.version < message.version:
                # An answer that was heard late, after a later call's.
                continue
            if message.settling is Fate.YES:
                self.fault(
                    "revived",
                    f"{seq} was settled under call {message.settled_by}, and "
                    f"leased again by {answer.version}",
                )
            if 0 < message.superseded_at < since:
                self.fault("outdated", f"{seq} was leased though its key had a newer revision")
            if message.purging is Fate.YES:
                self.fault("revived", f"{seq} was purged and leased again")
            if answer.at_ms < message.until_ms:
                self.fault(
                    "shared",
                    f"{seq} was leased by call {message.version} for another "
                    f"{message.until_ms - answer.at_ms} ms, and by {answer.version}",
                )
            if answer.version <= message.version or deliveries <= message.deliveries:
                self.fault(
                    "misjudged",
                    f"{seq}, call {answer.version}, delivery {deliveries}, "
                    f"after call {message.version}, delivery {message.deliveries}",
                )
            message.version, message.deliveries = answer.version, deliveries
            message.taken_at = self.clock
            message.until_ms = at_ms + lease_ms
            message.receipt = receipt

    def ending(
        self, calls: Iterable[tuple[int, int]], *, is_settle: bool
    ) -> list[tuple[Message, int]]:
        """Messages that are being settled or given back, each under a lease call."""
        found = []
        for seq, version in calls:
            message = self.placed.get(seq)
            if message is None:
                # It is over since the queue was looked at; this is a retry.
                continue
            if not is_settle:
                message.until_ms = 0
            elif message.settling is Fate.NO:
                message.settling = Fate.OPEN
            found.append((message, version))
        return found

    def ended(self, message: Message, version: int, since: int, *, is_settle: bool) -> None:
        """A message was settled or given back, which was tried at `since`.

        Whoever leases what was given back may hear of it before whoever gave it back does.
        """
        if message.version > version and (is_settle or message.taken_at < since):
            self.fault(
                "misjudged",
                f"{message.seq} was ended under call {version}, though call "
                f"{message.version} had taken it over",
            )
        if is_settle:
            message.settling, message.settled_by = Fate.YES, version

    def not_ended(
        self, message: Message, version: int, code: str, at_ms: int, *, is_settle: bool
    ) -> None:
        """Settling it, or giving it back, was refused."""
        seq = message.seq
        if is_settle and message.settling is Fate.YES and message.settled_by == version:
            self.fault("misjudged", f"{seq} was settled under call {version}, and is {code} now")
            return
        is_explained = (
            (code == "superseded" and self.keyed)
            or (code == "stale" and (message.version > version or at_ms >= message.until_ms))
            or (code == "gone" and message.purging is not Fate.NO)
        )
        if not is_explained:
            self.fault("misjudged", f"{seq} under call {version} was refused as {code}")
        if is_settle and message.settling is Fate.OPEN:
            message.settling = Fate.NO

    # --- Looking at everything -------------------------------------------------------------------

    def look(self, look: Look) -> None:
        """Compare with the whole queue, as it is while nothing else happens.

        From now on the fate of every message is known.
        """
        seen = self._see(look)
        self._compare_numbers(look)
        purging = [m.tag in seen for m in self.present.values() if m.purging is Fate.OPEN]
        if any(purging) and not all(purging):
            self.fault("torn", f"{sum(purging)} of {len(purging)} were left by a purge")
        for message in list(self.present.values()):
            if not message.seq:
                self._give_up(message)
            elif message.tag in seen:
                self._is_there(message)
            else:
                self._is_not_there(message)
        self._count(look, seen)

    def _see(self, look: Look) -> set[int]:
        seen: set[int] = set()
        keys: dict[int, int] = {}
        last = 0
        for seq, tag in look.rows:
            if seq <= last:
                self.fault("doubled", f"{seq} comes after {last}")
            last = seq
            message = self.observe(tag, seq, "seen")
            if message is None:
                continue
            seen.add(tag)
            if message.key is not None and message.key in keys:
                self.fault("outdated", f"key {message.key} is at {keys[message.key]} and at {seq}")
            elif message.key is not None:
                keys[message.key] = seq
        return seen

    def _compare_numbers(self, look: Look) -> None:
        """A message and its producer's number come about together."""
        for message in self.present.values():
            sending = message.sending
            if not sending.producer:
                continue
            is_counted = look.producers.get(sending.producer, 0) >= sending.number
            if message.seq and not is_counted:
                self.fault("torn", f"{_shown(sending)} is there, but not its producer's number")
            if is_counted and not message.seq:
                if not self.keyed:
                    self.fault("torn", f"{_shown(sending)} is not there, but its number is")
                # On a keyed queue it was replaced before anyone saw it.
                sending.fate = Fate.YES

    def _give_up(self, message: Message) -> None:
        """It was not answered, and is not there."""
        sending = message.sending
        if sending.fate is Fate.OPEN:
            sending.fate = Fate.NO
        if self.keyed:
            # It may have come about and have been replaced before anyone saw it.
            self._unsure += 1
        del self.present[message.tag]
        self.over.add(message.tag)

    def _is_there(self, message: Message) -> None:
        if message.settling is Fate.YES:
            self.fault(
                "revived",
                f"{message.seq} was settled under call {message.settled_by}, and is there again",
            )
        if message.purging is Fate.YES:
            self.fault("revived", f"{message.seq} was purged, and is there again")
        if message.superseded_at:
            self.fault("outdated", f"{message.seq} is there beside a newer revision of its key")
        message.settling = Fate.NO
        message.purging = Fate.NO

    def _is_not_there(self, message: Message) -> None:
        if message.settling is Fate.OPEN and message.superseded_at:
            # Which of the two came first, only a retry can tell.
            message.settling = Fate.NO
        if message.settling is Fate.OPEN:
            message.settling, message.settled_by = Fate.YES, message.version
        if message.purging is Fate.OPEN:
            message.purging = Fate.YES
        if message.is_over:
            return
        self.fault("lost", f"{message.tag} at {message.seq} ({_shown(message.sending)})")
        message.superseded_at = self.clock

    def _count(self, look: Look, seen: set[int]) -> None:
        counters = look.counters
        published, live = counters["published"], counters["live"]
        ends = sum(counters.values()) - published - live
        if published != live + ends:
            self.fault("miscounted", f"{counters} do not add up")
        if not self._sure <= published <= self._sure + self._unsure:
            self.fault(
                "miscounted",
                f"{published} published, {self._sure} are known, {self._unsure} doubtful",
            )
        if self.keyed:
            return
        kept = (
            sum(
                message.settling is Fate.YES and message.seq > look.cursor
                for message in self.present.values()
            )
            if look.cursor >= 0
            else 0
        )
        if live != len(seen) + kept:
            self.fault("miscounted", f"{live} live, {len(seen)} are there, {kept} are kept")

    def forget(self, cursor: int) -> None:
        """What is over, and what the cursor has passed, must not be heard of again."""
        over = [
            message
            for message in self.present.values()
            if message.is_over and (cursor < 0 or message.seq <= cursor)
        ]
        for message in over:
            self.present.pop(message.tag, None)
            # Two may have been found in one place, or one in two.
            self.placed.pop(message.seq, None)
            self.over.add(message.tag)
            if message.settling is Fate.YES:
                self.settled.add(message.seq)


def _shown(sending: Sending) -> str:
    number = f" ({sending.producer}/{sending.number})" if sending.producer else ""
    return f"{len(sending.tags)} from {sending.tags[0]}{number}"
