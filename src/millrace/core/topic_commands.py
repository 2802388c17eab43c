"""What may be asked of a topic, and what is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from millrace.core.block import Block
from millrace.core.model import Seq, ShardId
from millrace.core.notes import Most, Notes
from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace.core.commands import Aside
    from millrace.core.leased_commands import Life


class Subscribe(msgspec.Struct, frozen=True):
    """Have what comes to this topic forwarded to a queue. Answer: `Subscribed`."""

    name: str
    space: str
    queue: str
    filter: str
    """As `filters.text` writes it."""
    notes: Notes = ()
    """Of one that is there, those that are named must be the stored ones."""
    durable: bool = False
    """The queue need not be there; see `SubscriptionCell`."""
    dead_letter: str = ""
    queue_notes: Notes = ()


class ConfigureSubscription(msgspec.Struct, frozen=True):
    """Change a subscription that is there. Answer: `Subscribed`.

    The filter judges whatever was not forwarded before, and nothing is forwarded twice.
    """

    name: str
    filter: str | None = None
    """As `filters.text` writes it; None: as it is."""
    notes: Notes = ()
    """Those that are named; an empty text ends one."""
    durable: bool = False
    """True: make it durable. What is durable stays so."""
    dead_letter: str | None = None
    queue_notes: Notes = ()
    """As `notes`."""


class Unsubscribe(msgspec.Struct, frozen=True):
    """Forward nothing more. Answer: whether there was such a subscription."""

    name: str


class Parcel(msgspec.Struct, frozen=True):
    """What a subscription forwards next: the rows (after, upto] of its topic, as far as they pass
    its filter."""

    subscription: int
    after: int
    upto: int
    rows: Block | None
    filtered: int = 0
    aside: tuple[Aside, ...] = ()
    lives: tuple[Life, ...] = ()
    filter: str = ""
    """The filter that they passed."""


class Forward(msgspec.Struct, frozen=True):
    """Bring rows of this topic to queues, each parcel as far as its queue takes it.

    Answer: `Forwarded`.
    """

    parcels: tuple[Parcel, ...]


class CreateTopic(msgspec.Struct, frozen=True):
    """Find or make a topic. Answer: `TopicRef`; with other settings than the stored: refused."""

    space: str
    name: str
    max_lag: int | None = None
    notes: Notes = ()
    """Of one that is there, those that are named must be the stored ones."""


class ConfigureTopic(msgspec.Struct, frozen=True):
    """Change a topic's settings. Answer: `TopicCell`."""

    space: str
    name: str
    shard: int
    max_lag: int | None = None
    """None: as it is."""
    notes: Notes = ()
    """Those that are named; an empty text ends one."""
    most: Most | None = None
    """As for `Configure`."""


class DeleteTopic(msgspec.Struct, frozen=True):
    """End a topic, its subscriptions, and what was not forwarded. Answer: whether there was one."""

    space: str
    name: str
    shard: int = 0
    """This one alone, and none that was made anew under its name; 0: whichever there is."""


class TopicRef(msgspec.Struct, frozen=True):
    """Where a topic is."""

    shard: ShardId
    made: bool


class Subscribed(msgspec.Struct, frozen=True):
    """A subscription, and after which seq of the topic it begins."""

    subscription: int
    since: int
    made: bool


Outcome = Literal["forwarded", "dead_lettered", "dropped"]
"""Where rows went: to their queue, or as there is none, or they are too large for it, to that of
dead letters or nowhere."""


class Brought(msgspec.Struct, frozen=True):
    """What became of a parcel."""

    subscription: int
    moved: bool
    """Its subscription has passed these rows."""
    first: Seq | None = None
    """Where the rows are in the queue; None where there are none, or that is forgotten."""
    places: tuple[int, ...] = ()
    """The same of a queue with several shards, row by row; 0 where it is forgotten."""
    error: MillraceError | None = None
    """Why the queue did not take it; without that, someone else was faster or it has ended."""
    outcome: Outcome = "forwarded"
    gone: tuple[int, ...] = ()
    """Which of the rows, from 0, were too large for the queue; `first` and `places` are those of
    the others."""


class Forwarded(msgspec.Struct, frozen=True):
    """What became of each parcel."""

    parcels: tuple[Brought, ...]
