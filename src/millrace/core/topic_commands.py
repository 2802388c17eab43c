"""Commands of a topic and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from millrace.core.format.block import Block
from millrace.core.model import Seq, ShardId
from millrace.core.notes import Notes, NotesLimit
from millrace.errors import MillraceError

if TYPE_CHECKING:
    from millrace.core.commands import RowSchedule, RowTtl


class Subscribe(msgspec.Struct, frozen=True):
    """Forward new rows of this topic to a queue. Answer: `SubscribeResult`."""

    name: str
    space: str
    queue: str
    filter: str
    """The filter as `filters.text` writes it."""
    notes: Notes = ()
    """If the subscription exists, these notes must equal the stored ones."""
    durable: bool = False
    """The queue need not exist; see `SubscriptionCell`."""
    dead_letter: str = ""
    queue_notes: Notes = ()


class ConfigureSubscription(msgspec.Struct, frozen=True):
    """Change an existing subscription. Answer: `SubscribeResult`.

    The new filter applies to all rows that were not forwarded before; no row is forwarded twice.
    """

    name: str
    filter: str | None = None
    """The filter as `filters.text` writes it; None: unchanged."""
    notes: Notes = ()
    """Notes to change; an empty text removes one."""
    durable: bool = False
    """True: make it durable. A durable subscription stays durable."""
    dead_letter: str | None = None
    queue_notes: Notes = ()
    """As `notes`."""


class Unsubscribe(msgspec.Struct, frozen=True):
    """End a subscription. Answer: whether there was one."""

    name: str


class Parcel(msgspec.Struct, frozen=True):
    """The next rows of a subscription: the rows (after, upto] of its topic that pass its filter."""

    subscription: int
    after: int
    upto: int
    rows: Block | None
    filtered: int = 0
    aside: tuple[RowSchedule, ...] = ()
    lives: tuple[RowTtl, ...] = ()
    filter: str = ""
    """The filter that the rows have passed."""


class Forward(msgspec.Struct, frozen=True):
    """Forward rows of this topic to queues, each parcel as far as its queue accepts it.

    Answer: `ForwardResult`.
    """

    parcels: tuple[Parcel, ...]


class CreateTopic(msgspec.Struct, frozen=True):
    """Create a topic if it is missing. Answer: `TopicRef`; refused if the stored settings
    differ."""

    space: str
    name: str
    max_lag: int | None = None
    notes: Notes = ()
    """If the topic exists, these notes must equal the stored ones."""


class ConfigureTopic(msgspec.Struct, frozen=True):
    """Change a topic's settings. Answer: `TopicCell`."""

    space: str
    name: str
    shard: int
    max_lag: int | None = None
    """None: unchanged."""
    notes: Notes = ()
    """Notes to change; an empty text removes one."""
    most: NotesLimit | None = None
    """As in `Configure`."""


class DeleteTopic(msgspec.Struct, frozen=True):
    """End a topic, its subscriptions, and its unforwarded rows. Answer: whether there was one."""

    space: str
    name: str
    shard: int = 0
    """End only the topic with this shard, and none created later under the name; 0: any."""


class TopicRef(msgspec.Struct, frozen=True):
    """The shard of a topic."""

    shard: ShardId
    made: bool


class SubscribeResult(msgspec.Struct, frozen=True):
    """A subscription, and the topic's seq after which it begins."""

    subscription: int
    since: int
    made: bool


ForwardDestination = Literal["forwarded", "dead_lettered", "dropped"]
"""Destination of forwarded rows: their queue; or, if it does not exist or they are too large for
it, the dead-letter queue or nowhere."""


class ForwardedParcel(msgspec.Struct, frozen=True):
    """The outcome of a parcel."""

    subscription: int
    moved: bool
    """True if the subscription has passed these rows."""
    first: Seq | None = None
    """First seq of the rows in the queue; None if there are no rows, or the seqs are forgotten."""
    places: tuple[int, ...] = ()
    """The same for a queue with several shards, row by row; 0: forgotten."""
    error: MillraceError | None = None
    """Why the queue refused it; without an error, another call was faster or the subscription
    ended."""
    outcome: ForwardDestination = "forwarded"
    gone: tuple[int, ...] = ()
    """Row numbers, from 0, of rows that were too large for the queue; `first` and `places`
    belong to the others."""


class ForwardResult(msgspec.Struct, frozen=True):
    """The outcome of each parcel."""

    parcels: tuple[ForwardedParcel, ...]
