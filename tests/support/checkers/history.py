"""What clients asked and were told: the only thing that the checkers look at.

A call is written down when it is made, and again when it is answered. One that was never answered,
or was told that the outcome is unknown, stays open to the end: it may have been done or not, and
if it was, then at any time after it was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple, TypeVar, cast

C = TypeVar("C", bound="Call")


class Outcome(Enum):
    """What became of a call, as far as its client knows."""

    OPEN = "open"
    OK = "ok"
    REFUSED = "refused"
    """Told that it was not done: `Refused` and `Retry` alike."""


class Sent(NamedTuple):
    """A message as a producer gave it."""

    tag: str
    """The header by which it is known again: no two messages have the same."""
    key: bytes | None
    body: bytes | None


class Turn(NamedTuple):
    """When a message is to come to its turn, as its producer said."""

    priority: int = 4
    delay_ms: int | None = None
    """None: as the queue says."""
    group: bytes | None = None
    """None: that of its key."""


class Seen(NamedTuple):
    """A message as somebody got it."""

    seq: int
    tag: str
    key: bytes | None
    body: bytes | None
    time_ms: int = 0
    deliveries: int = 0
    failures: int = 0
    id: int | None = None
    """Where messages have ids."""


@dataclass(slots=True, kw_only=True)
class Call:
    """Something that was asked of a shard. A shard is one life of a queue."""

    shard: int
    actor: str = ""
    number: int = 0
    """When it was asked: numbers count askings and answers alike."""
    ended: int | None = None
    """When it was answered."""
    latest: int | None = None
    """When it was done at the latest, if it was: the engine that was asked ended then."""
    given_up: int | None = None
    """When its client went away without waiting for the answer."""
    outcome: Outcome = Outcome.OPEN
    error: str = ""
    transaction: int | None = None
    """Calls with the same number here are done together or not at all."""

    @property
    def may_be_done(self) -> bool:
        return self.outcome is not Outcome.REFUSED

    @property
    def is_ok(self) -> bool:
        return self.outcome is Outcome.OK


@dataclass(slots=True, kw_only=True)
class Publish(Call):
    rows: tuple[Sent, ...]
    producer: str | None = None
    sequence: int | None = None
    """The producer's number."""
    first: int | None = None
    """The first seq; an old repeat is answered without it."""
    ids: tuple[int, ...] = ()
    """Instead of seqs, where messages have ids."""
    is_late: bool = False
    """A repeat of what was answered long ago."""


@dataclass(slots=True, kw_only=True)
class Lease(Call):
    lease_ms: int
    count: int = 0
    """How many were asked for; 0: unknown."""
    version: int = 0
    deadline_ms: int = 0
    rows: tuple[Seen, ...] = ()


@dataclass(slots=True, kw_only=True)
class Settle(Call):
    seq: int
    version: int
    any_delivery: bool = False
    """Also if it was leased again since, by a lease after `version`."""


@dataclass(slots=True, kw_only=True)
class Release(Call):
    seq: int
    version: int
    failed: bool = False
    failures: int = 0
    """How often the message has failed, if this one counts."""
    delay_ms: int = 0
    since_ms: int = 0
    """The shard's own time was at least this when it was done."""


@dataclass(slots=True, kw_only=True)
class Discard(Call):
    seq: int
    version: int


@dataclass(slots=True, kw_only=True)
class Extend(Call):
    seq: int
    version: int
    deadline_ms: int = 0


@dataclass(slots=True, kw_only=True)
class Delete(Call):
    """A message was ended by its id."""

    tag: str


@dataclass(slots=True, kw_only=True)
class Purge(Call):
    upto: int = 0


@dataclass(slots=True, kw_only=True)
class Rewind(Call):
    """Workers go back; from here on the shard counts deliveries anew."""

    first: int = 0


@dataclass(slots=True, kw_only=True)
class Drop(Call):
    """The end of the shard."""


@dataclass(slots=True, kw_only=True)
class Read(Call):
    """A snapshot that was read, whole."""

    cursor: str = ""
    """Empty: a pin without a cursor."""
    retain: bool = False
    opened: int = 0
    """When the cursor was there: what is settled later is kept for a retaining one."""
    index: int = 0
    after: int = 0
    boundary: int = 0
    rows: tuple[Seen, ...] = ()


@dataclass(slots=True, kw_only=True)
class Commit(Call):
    """A cursor was moved."""

    cursor: str
    seq: int


@dataclass(slots=True, kw_only=True)
class Peek(Call):
    """Some messages, as they were at some moment."""

    rows: tuple[Seen, ...] = ()


@dataclass(slots=True, kw_only=True)
class TopicPublish(Call):
    """Messages for a topic: tag and kind of each."""

    rows: tuple[tuple[str, bytes], ...]
    first: int | None = None
    """The first seq in the topic."""
    queues: dict[str, list[int | str]] = field(default_factory=dict)
    """What a publisher that waited was told of each queue."""


@dataclass(slots=True, kw_only=True)
class TopicRead(Call):
    """All that a queue has got from a topic: seq and tag of each message."""

    queue: str
    since: int = 0
    """When its subscription was known to be there."""
    rows: tuple[tuple[int, str], ...] = ()


@dataclass(slots=True, kw_only=True)
class Other(Call):
    """Whatever needs no checking of its own; kept for the story."""

    what: str


@dataclass(slots=True)
class Shard:
    """What is known of a shard from the outside."""

    keyed: bool = False
    retention: str = "work"
    live: dict[int, Seen] | None = None
    """What was there at the end of the run; None if the queue was gone."""
    counts: dict[str, int] = field(default_factory=dict)
    dead_letter: int | None = None
    """The shard that its dead letters go to."""
    max_failures: int = 0
    max_deliveries: int = 0
    retry_min_ms: int = 0
    retry_max_ms: int = 0
    delay_ms: int = 0
    order: str = "none"
    group_in_flight: int = 0
    ttl_ms: int = 0
    expired_are_letters: bool = False
    keep_messages: int = 0
    keep_ms: int = 0
    keep_bytes: int = 0
    seen_ms: int = 0
    """When it was looked at in the end."""
    partitions: tuple[int, int] = (0, 0)
    """How many there are at least and at most; 0: it has none."""
    max_messages: int = 0
    max_bytes: int = 0
    is_dropping: bool = False
    """What does not fit drops the oldest that wait; else it is refused."""
    max_in_flight: int = 0
    is_changed: bool = False
    """It was made without an order, and became fair: of a group, those from before wait apart."""
    group_blocking: str = "lease"


class History:
    """All calls of a run, in the order of asking, and a digest of everything that happened."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.shards: dict[int, Shard] = {}
        self.turns: dict[str, Turn] = {}
        """Tag → its turn; missing: as usual."""
        self.lives: dict[str, int] = {}
        """Tag → its time to live, in milliseconds; missing: as the queue says."""
        self.step = 0
        self.lines: list[str] = []
        """The story, for whoever has to find out what went wrong."""
        self._kinds: dict[type[Call], list[Call]] = {}
        self._digest = blake2b(digest_size=16)

    def say(self, line: str) -> None:
        """Add a line to the story and to the digest."""
        self.step += 1
        self.lines.append(f"{self.step:6} {line}")
        self.trace(line)

    def trace(self, line: str) -> None:
        """Add something to the digest that is not worth telling."""
        self._digest.update(line.encode())
        self._digest.update(b"\n")

    def digest(self) -> str:
        """The same for two runs in which the same things happened in the same order."""
        return self._digest.copy().hexdigest()

    def begin(self, call: C) -> C:
        self.say(f"{call.actor}: {_shown(call)}")
        call.number = self.step
        self.calls.append(call)
        self._kinds.setdefault(type(call), []).append(call)
        return call

    def done(self, call: Call) -> None:
        """The call was answered; what it was told stands in it already."""
        call.outcome = Outcome.OK
        self._end(call)

    def refused(self, call: Call, error: Exception) -> None:
        call.outcome = Outcome.REFUSED
        call.error = f"{type(error).__name__}: {error}"
        self._end(call)

    def unknown(self, call: Call, error: Exception) -> None:
        """The engine has ended: nobody knows what became of the call."""
        call.error = f"{type(error).__name__}: {error}"
        self.say(f"{call.actor}: {call.number} is unknown: {call.error}")
        if isinstance(error, TimeoutError):
            call.given_up = self.step

    def engine_ended(self) -> None:
        """Whatever is open now was done by now, or never will be."""
        for call in self.calls:
            if call.outcome is Outcome.OPEN and call.latest is None:
                call.latest = self.step

    def _end(self, call: Call) -> None:
        self.say(f"{call.actor}: {call.number} → {call.outcome.value} {_told(call)}")
        call.ended = call.latest = self.step

    def first_asked(self) -> dict[tuple[int, str], int]:
        """When each message, by shard and tag, was first sent: a repeat may be answered for it."""
        found: dict[tuple[int, str], int] = {}
        for call in self.of(Publish):
            for row in call.rows:
                found.setdefault((call.shard, row.tag), call.number)
        return found

    def is_rewound(self, shard: int, since: int, until: int | None) -> bool:
        """Whether workers may have gone back between these steps."""
        return any(
            call.shard == shard
            and call.may_be_done
            and (call.latest is None or call.latest > since)
            and (until is None or call.number < until)
            for call in self.of(Rewind)
        )

    def of(self, kind: type[C]) -> list[C]:
        """The calls of one kind."""
        return cast("list[C]", self._kinds.get(kind, []))


def _shown(call: Call) -> str:
    name = type(call).__name__.lower()
    match call:
        case Publish():
            by = f" by {call.producer}/{call.sequence}" if call.producer else ""
            rows = ", ".join(f"{row.tag}{_key(row.key, row.body)}" for row in call.rows[:4])
            text = f"{len(call.rows)} rows{by}: {rows}"
        case Lease():
            text = f"for {call.lease_ms} ms"
        case Release():
            how = " as failed" if call.failed else ""
            text = f"{call.seq} of lease {call.version}{how}, delayed by {call.delay_ms} ms"
        case Settle() | Extend() | Discard():
            text = f"{call.seq} of lease {call.version}"
        case Read():
            text = f"{call.cursor or 'pin'}{' retaining' if call.retain else ''}"
        case Delete():
            text = call.tag
        case Commit():
            text = f"{call.cursor} at {call.seq}"
        case TopicPublish():
            text = f"{len(call.rows)} rows: {', '.join(tag for tag, _ in call.rows)}"
        case TopicRead():
            text = call.queue
        case Other():
            text = call.what
        case _:
            text = ""
    part = f" in transaction {call.transaction}" if call.transaction is not None else ""
    return f"{name} on {call.shard} {text}{part}"


def _key(key: bytes | None, body: bytes | None) -> str:
    if key is None:
        return ""
    return f"[{key.decode()}]" if body is not None else f"[{key.decode()} deleted]"


def _told(call: Call) -> str:
    if call.error:
        return call.error
    match call:
        case Publish():
            return f"ids {list(call.ids)}" if call.ids else f"first {call.first}"
        case TopicPublish():
            return f"first {call.first}, {call.queues}"
        case TopicRead():
            return f"{len(call.rows)} rows"
        case Lease():
            seqs = ",".join(f"{row.seq}×{row.deliveries}" for row in call.rows)
            return f"lease {call.version} until {call.deadline_ms}: {seqs}"
        case Extend():
            return f"until {call.deadline_ms}"
        case Rewind():
            return f"to {call.first}"
        case Purge():
            return f"up to {call.upto}"
        case Read():
            seqs = ",".join(str(row.seq) for row in call.rows)
            return f"index {call.index} ({call.after}, {call.boundary}]: {seqs}"
        case _:
            return ""
