"""Parts of the naive model of a shard."""

from __future__ import annotations

from dataclasses import dataclass, field

Answered = tuple[int | None, int]
"""First seq and number of rows; None: not one range."""


@dataclass
class ModelRow:
    """A message and its state."""

    seq: int
    key: bytes | None
    body: bytes | None
    time: int
    state: str = "live"
    """live, kept (settled, for retaining cursors), or why it died."""
    deliveries: int = 0
    failures: int = 0
    lease: int = 0
    """Its latest lease, as long as it is neither ended nor settled."""
    doom: str = ""
    """Why it is a dead letter."""
    is_fresh: bool = True
    """No worker was given it, or workers went back to before it since."""


@dataclass
class ModelLease:
    """A lease call, with the state of each of its messages."""

    token: int
    """Unlike lease ids, never given twice, whatever a takeover loses."""
    seqs: dict[int, str]
    """open, freed, doomed, buried, settled, overtaken, superseded, purged."""
    deadlines: dict[int, int]
    """For released messages: when they are ready again."""
    ended: int = 0
    discarded: set[int] = field(default_factory=set)


@dataclass
class ModelCursor:
    id: int
    retain: bool
    seq: int
    start: int
    end: int
    pin: int = 0


@dataclass
class ModelPin:
    boundary: int
    floor: int
    deadline: int
    cursor: str
    retain: bool
    rows: dict[int, bytes | None] | None = None
    """What it shows; known when its batch ends."""
    purged: int = 0


@dataclass(frozen=True)
class Limits:
    """The settings of a queue about failures."""

    max_failures: int = 0
    max_deliveries: int = 0
    retry_min: int = 0
    retry_max: int = 0
    buries: bool = False
    """Whether it names a queue for its dead letters."""
    keep_messages: int = 0
    """Of a `log` without keys."""
    max_in_flight: int = 0
