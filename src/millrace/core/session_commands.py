"""What a consumer's session may ask of a shard, and what it is answered."""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace.core.model import LeaseId


class Claim(msgspec.Struct, frozen=True):
    """Which session speaks, and by whose mouth."""

    session: int
    history: bytes
    """The history in which it was opened or resumed."""
    number: int
    """How often it was opened and resumed then: the newest claim alone is heard."""
    epoch: int
    """The decider that it was made with: one that a takeover has lost is not taken for another."""


class OpenSession(msgspec.Struct, frozen=True):
    """Begin a session. Answer: `SessionRef`."""

    credit: int
    """How many messages it holds at once (`refill`), or is handed before it grants more."""
    refill: bool
    lease_ms: int
    """How long it holds each message; 0: as long as the session lasts."""
    suspect_ms: int
    """How long it keeps its messages while nobody speaks for it."""
    name: str = ""


class ResumeSession(msgspec.Struct, frozen=True):
    """Speak for a session from now on, whoever did before. Answer: `SessionRef`."""

    session: int
    history: bytes


class Receive(msgspec.Struct, frozen=True):
    """Hand out what its credit allows, or tell again what it holds. Answer: `Delivered`."""

    claim: Claim
    expected: int
    """The delivery number that the consumer has not heard of: what it holds from there on is told,
    before anything else is handed out."""
    count: int


class GrantCredit(msgspec.Struct, frozen=True):
    """Let so many more be handed out. Answer: `Granted`."""

    claim: Claim
    credit: int
    drain: bool = False
    """What is there is handed out now, and the rest of the credit is taken back."""


class SuspectSession(msgspec.Struct, frozen=True):
    """Nobody speaks for the session any more, as far as is known. Answer: whether it was there."""

    claim: Claim


class CloseSession(msgspec.Struct, frozen=True):
    """End a session and give back what it holds. Answer: how many messages went back."""

    claim: Claim
    seen: int
    """From this delivery number on the consumer has looked at none: they were not delivered."""
    keep: bool = False
    """Hand out nothing more, but leave it what it holds until that is settled."""
    failed: bool = False
    """Its consumer is known to be gone: what it holds has failed, as after a crash."""


class SessionRef(msgspec.Struct, frozen=True):
    """A session that somebody speaks for."""

    claim: Claim
    credit: int
    refill: bool
    lease_ms: int
    suspect_ms: int
    next: int
    """The next delivery number; the first is 0."""
    name: str = ""


class Delivery(msgspec.Struct, frozen=True):
    """Messages that a session was handed at once."""

    lease: LeaseId
    numbers: dict[int, int]
    """Seq → delivery number, in the order of the numbers."""
    deadline_ms: int
    counts: dict[int, tuple[int, int]]
    """(deliveries, failures) of the seqs for which they are not (1, 0)."""

    def seqs(self) -> BitMap64:
        """The messages."""
        return BitMap64(self.numbers)


class Delivered(msgspec.Struct, frozen=True):
    """What a session holds, from the number on that it expected."""

    deliveries: tuple[Delivery, ...]
    next: int
    """The number that it has to expect from now on."""


class Granted(msgspec.Struct, frozen=True):
    """What became of credit that was granted."""

    credit: int
    """What is left to be used."""
    drained: int = 0
    """What was taken back, because nothing was there for it."""
