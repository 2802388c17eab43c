"""Commands of a consumer session, and their results."""

from __future__ import annotations

import msgspec
from pyroaring import BitMap64

from millrace.core.model import LeaseId


class Claim(msgspec.Struct, frozen=True):
    """The right to use a session; a fencing token."""

    session: int
    history: bytes
    """The history in which the session was opened or resumed."""
    number: int
    """Number of opens and resumes at that time: only the newest claim is accepted."""
    epoch: int
    """The decider that created it, so that a claim lost in a takeover is never confused with
    another."""


class OpenSession(msgspec.Struct, frozen=True):
    """Open a session. Answer: `SessionRef`."""

    credit: int
    """Messages that it may hold at once (`refill`), or deliveries until it grants more."""
    refill: bool
    lease_ms: int
    """Lease time of each message; 0: as long as the session lasts."""
    suspect_ms: int
    """Timeout of a lost session, after which its messages are released."""
    name: str = ""


class ResumeSession(msgspec.Struct, frozen=True):
    """Take over a session, also from another connection. Answer: `SessionRef`."""

    session: int
    history: bytes


class Receive(msgspec.Struct, frozen=True):
    """Deliver what the credit allows, or repeat what the session holds. Answer: `ReceiveResult`."""

    claim: Claim
    expected: int
    """The next delivery number that the consumer expects: deliveries from there on that it
    already holds are repeated before new ones are made."""
    count: int


class GrantCredit(msgspec.Struct, frozen=True):
    """Raise the session's credit. Answer: `Granted`."""

    claim: Claim
    credit: int
    drain: bool = False
    """Deliver what is ready now, and take the rest of the credit back."""


class SuspectSession(msgspec.Struct, frozen=True):
    """Report that the session's connection was lost. Answer: whether the session existed."""

    claim: Claim


class CloseSession(msgspec.Struct, frozen=True):
    """Close a session and release its messages. Answer: how many were released."""

    claim: Claim
    seen: int
    """From this delivery number on the consumer has seen none: these deliveries do not count."""
    keep: bool = False
    """Deliver nothing more, but let the session hold its messages until they are settled."""
    failed: bool = False
    """The consumer is known to be gone: its messages are released as failed, as after a crash."""


class SessionRef(msgspec.Struct, frozen=True):
    """An open session and its settings."""

    claim: Claim
    credit: int
    refill: bool
    lease_ms: int
    suspect_ms: int
    next: int
    """The next delivery number; the first is 0."""
    name: str = ""


class SessionDelivery(msgspec.Struct, frozen=True):
    """Messages that a session received at once."""

    lease: LeaseId
    numbers: dict[int, int]
    """Seq → delivery number, in the order of the numbers."""
    deadline_ms: int
    counts: dict[int, tuple[int, int]]
    """(deliveries, failures) of the seqs with other counts than (1, 0)."""

    def seqs(self) -> BitMap64:
        """Return the seqs of the messages."""
        return BitMap64(self.numbers)


class ReceiveResult(msgspec.Struct, frozen=True):
    """The deliveries of a session, from the expected number on."""

    deliveries: tuple[SessionDelivery, ...]
    next: int
    """The next number to expect."""


class Granted(msgspec.Struct, frozen=True):
    """The credit of a session after a grant."""

    credit: int
    """Credit that can still be used."""
    drained: int = 0
    """Credit that was taken back, because no messages were ready for it."""
